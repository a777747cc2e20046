"""What adapters cost: the same answers without any, and with one or many in every batch.

    python benchmarks/adapters.py MODEL_DIR [--numbers 1,32] [--rank 16] [--scale 1.0] [--max-adapters N]

Writes random adapters of all linear layers of the language model, as PEFT does, to a temporary folder. *text*:
requests per second of the workload of h200.py, request i with adapter i modulo the number; *single*: milliseconds per
token of one answer of 256 tokens. Number 0 is an engine that was made without adapters. Prints a line `RESULT {JSON}`
per number.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from h200 import open_pipeline, report
from safetensors import safe_open
from safetensors.torch import save_file

from seesay import GenerationConfig, Pipeline
from seesay.bench import workload

_LINEAR = re.compile(r"(?:.*\.)?layers\.\d+\.(?:self_attn|mlp)\.\w+_proj\.weight")
NUM_TOKENS, NUM_ROUNDS = 256, 3


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
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = 0.01 * torch.randn(shape, generator=generator)
    return tensors


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], rank: int, index: int) -> Path:
    """Write one of several adapters, whose weights differ by a factor."""
    folder.mkdir(parents=True)
    scaled = {name: (tensor * (1 + index / 16)).bfloat16() for name, tensor in tensors.items()}
    save_file(scaled, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def measure(pipe: Pipeline, names: Sequence[str], scale: float) -> dict[str, float]:
    """Return the figures of an engine whose requests use these adapters in turn."""

    def answer(prompts: list[str], num_tokens: Sequence[int]) -> float:
        chosen = [names[i % len(names)] for i in range(len(prompts))] if names else None
        configs = [
            GenerationConfig(do_sample=False, max_new_tokens=n, min_new_tokens=n, ignore_eos=True) for n in num_tokens
        ]
        started_s = time.perf_counter()
        answers = pipe(prompts, gen_config=configs, adapter_name=chosen)
        seconds = time.perf_counter() - started_s
        assert all(one.error is None for one in answers), [one.error for one in answers if one.error]
        return seconds

    requests = workload.text_requests(max(1, int(512 * scale)))
    texts, lengths = [request.text for request in requests], [request.num_output_tokens for request in requests]
    warm = texts[: max(8, len(names))]
    answer(warm, [16] * len(warm))
    singles = [(answer(texts[:1], [n]), n) for _ in range(NUM_ROUNDS) for n in (16, NUM_TOKENS)]
    short_s, long_s = (min(seconds for seconds, n in singles if n == num) for num in (16, NUM_TOKENS))
    seconds = answer(texts, lengths)
    return {
        "req_per_s": round(len(texts) / seconds, 2),
        "single_tpot_ms": round(1e3 * (long_s - short_s) / (NUM_TOKENS - 16), 3),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--numbers", default="0,1,32", help="of adapters, with commas")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests of the workload text")
    parser.add_argument("--max-adapters", type=int, default=0, help="as of EngineConfig")
    args = parser.parse_args(argv)
    numbers = [int(number) for number in args.numbers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        shapes = read_shapes(Path(args.model))
        if not shapes:
            parser.error(f"{args.model} has no linear layers named as in layers.0.self_attn.q_proj.weight")
        tensors = draw_tensors(shapes, args.rank)
        written = {
            f"adapter-{index}": str(write_adapter(Path(folder, str(index)), tensors, args.rank, index))
            for index in range(max(numbers))
        }
        for number in numbers:
            chosen = dict(list(written.items())[:number])
            options = {"adapters": chosen, "max_adapters": args.max_adapters} if number else {}
            with open_pipeline(args.model, **options) as pipe:
                report(what="adapters", adapters=number, rank=args.rank, **measure(pipe, list(chosen), args.scale))


if __name__ == "__main__":
    main()
