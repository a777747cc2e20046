"""What adapters cost: the same answers without any, and with one or many in every batch.

    python benchmarks/adapters.py MODEL_DIR [--numbers 0,1,32] [--rank 16] [--scale 1.0] [--rounds 1]
        [--max-adapters N] [--only-cold]

Writes random adapters of all linear layers of the language model, as PEFT does, to a temporary folder: one file of
weights, which all have with scales of their own. *text*: requests per second of the workload of h200.py, request i with
adapter i modulo the number; the best of `--rounds` rounds. *single*: milliseconds per token of one answer of 256
tokens. `plain_…` are those of requests without an adapter, asked of the same engine in turns with the others, and
`share` is the rate relative to theirs, by the best rounds; `paired_share` is the median of the rounds' own;
`cpu_share` compares the CPU time of this process, which others on the machine change less. Nothing is found in the
prefix cache. Number 0 is an engine that was made without adapters.

With fewer slots (`--max-adapters`) than adapters, *cold_ms* is the median time of a first token whose adapter is in
host memory only, *warm_ms* that of one whose adapter is in a slot, of prompts that no cache has; `--only-cold` leaves
out the rest.

Prints a line `RESULT {JSON}` per number, and on stderr what is being done.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from h200 import open_pipeline, report
from safetensors import safe_open
from safetensors.torch import save_file

from seesay import GenerationConfig, Pipeline
from seesay.bench import workload

_LINEAR = re.compile(r"(?:.*\.)?layers\.\d+\.(?:self_attn|mlp)\.\w+_proj\.weight")
NUM_TOKENS, NUM_ROUNDS = 256, 3
NUM_FIRST = 30
"""First tokens that a median is of."""


def read_shapes(model: Path) -> dict[str, tuple[int, int]]:
    """Return the shapes of the linear layers of the language model, by their modules' names."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names = file.keys()
            for name in names:
                if _LINEAR.fullmatch(name) and "visual" not in name and "vision" not in name:
                    num_outputs, num_inputs = file.get_slice(name).get_shape()
                    found[name.removesuffix(".weight")] = (num_outputs, num_inputs)
    return found


def draw_tensors(shapes: dict[str, tuple[int, int]], rank: int) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter with random weights."""
    generator, tensors = torch.Generator().manual_seed(0), dict[str, torch.Tensor]()
    for module, (num_outputs, num_inputs) in shapes.items():
        for part, shape in (("A", (rank, num_inputs)), ("B", (num_outputs, rank))):
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = (
                0.01 * torch.randn(shape, generator=generator)
            ).bfloat16()
    return tensors


def write_adapter(folder: Path, weights: Path, rank: int, index: int) -> Path:
    """Write one of several adapters, which have the same file of weights, and differ by their scales."""
    folder.mkdir(parents=True)
    os.link(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank * (1 + index / 16), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


class Spent(NamedTuple):
    """Seconds, by the clock and of this process on all cores."""

    wall: float
    cpu: float


def answer(pipe: Pipeline, prompts: list[str], num_tokens: Sequence[int], names: Sequence[str]) -> Spent:
    """Let requests use these adapters in turn."""
    chosen = [names[i % len(names)] for i in range(len(prompts))] if names else None
    configs = [
        GenerationConfig(do_sample=False, max_new_tokens=n, min_new_tokens=n, ignore_eos=True) for n in num_tokens
    ]
    started = Spent(time.perf_counter(), time.process_time())
    answers = pipe(prompts, gen_config=configs, adapter_name=chosen)
    spent = Spent(time.perf_counter() - started.wall, time.process_time() - started.cpu)
    assert all(one.error is None for one in answers), [one.error for one in answers if one.error]
    return spent


def measure(pipe: Pipeline, names: Sequence[str], scale: float, num_rounds: int) -> dict[str, float]:
    """Return the figures of an engine with these adapters."""
    requests = workload.text_requests(max(1, int(512 * scale)))
    texts, lengths = [request.text for request in requests], [request.num_output_tokens for request in requests]
    warm = texts[: max(8, len(names))]
    ways = {"": names, "plain_": ()} if names else {"": ()}
    figures, cpu_s = dict[str, float](), dict[str, float]()
    for chosen in ways.values():
        answer(pipe, warm, [16] * len(warm), chosen)
    singles = [
        {(way, n): answer(pipe, texts[:1], [n], chosen).wall for way, chosen in ways.items() for n in (16, NUM_TOKENS)}
        for _ in range(NUM_ROUNDS)
    ]
    note(f"{len(names)} adapters: answering {len(texts)} requests")
    rounds = [{way: answer(pipe, texts, lengths, chosen) for way, chosen in ways.items()} for _ in range(num_rounds)]
    for way in ways:
        short_s, long_s = (min(each[way, n] for each in singles) for n in (16, NUM_TOKENS))
        figures[f"{way}req_per_s"] = round(len(texts) / min(each[way].wall for each in rounds), 3)
        figures[f"{way}single_tpot_ms"] = round(1e3 * (long_s - short_s) / (NUM_TOKENS - 16), 3)
        cpu_s[way] = min(each[way].cpu for each in rounds)
    if names:
        figures["paired_share"] = round(statistics.median(each["plain_"].wall / each[""].wall for each in rounds), 3)
        figures["share"] = round(figures["req_per_s"] / figures["plain_req_per_s"], 3)
        figures["cpu_share"] = round(cpu_s["plain_"] / cpu_s[""], 3)
    return figures


def measure_cold(pipe: Pipeline, names: Sequence[str], num_slots: int) -> dict[str, float]:
    """Return milliseconds to a first token, of adapters that others have taken the slots of, and of those in slots."""
    texts = (f"{index} is the number of a question that was never asked before." for index in itertools.count())
    chosen = names[: num_slots + 1]
    spent: dict[str, list[float]] = {"cold": [], "warm": []}
    for index in range(NUM_FIRST + len(chosen)):
        for way in spent:  # the second finds what the first has brought
            spent[way].append(answer(pipe, [next(texts)], [1], [chosen[index % len(chosen)]]).wall)
    return {f"{way}_ms": round(1e3 * statistics.median(each[len(chosen) :]), 3) for way, each in spent.items()}


def note(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--numbers", default="0,1,32", help="of adapters, with commas")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests of the workload text")
    parser.add_argument("--rounds", type=int, default=1, help="of the workload")
    parser.add_argument("--max-adapters", type=int, default=0, help="as of EngineConfig")
    parser.add_argument("--only-cold", action="store_true", help="with fewer slots than adapters: only first tokens")
    args = parser.parse_args(argv)
    numbers = [int(number) for number in args.numbers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        shapes = read_shapes(Path(args.model))
        if not shapes:
            parser.error(f"{args.model} has no linear layers named as in layers.0.self_attn.q_proj.weight")
        weights = Path(folder, "weights.safetensors")
        save_file(draw_tensors(shapes, args.rank), weights, metadata={"format": "pt"})
        note(f"an adapter has {weights.stat().st_size / 1e6:.1f} MB")
        written = {
            f"adapter-{index}": str(write_adapter(Path(folder, str(index)), weights, args.rank, index))
            for index in range(max(numbers))
        }
        for number in numbers:
            chosen = dict(list(written.items())[:number])
            options = {"adapters": chosen, "max_adapters": args.max_adapters} if number else {}
            note(f"{number} adapters: loading")
            with open_pipeline(args.model, enable_prefix_caching=False, **options) as pipe:
                figures = {} if args.only_cold else measure(pipe, list(chosen), args.scale, args.rounds)
                if 0 < args.max_adapters < number:
                    figures |= measure_cold(pipe, list(chosen), args.max_adapters)
            report(what="adapters", adapters=number, rank=args.rank, **figures)


if __name__ == "__main__":
    main()
