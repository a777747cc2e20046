"""What quantization saves and what it costs: speed, the KV cache in fewer bits, and right answers.

    python benchmarks/quantized.py MODEL_DIR --speed [--awq AWQ_DIR] [--forms plain,kv-int8] [--scale 1.0]
    python benchmarks/quantized.py MODEL_DIR --kv [--formats plain,int8,fp8,int4] [--rows 128] [--context 8000]
    python benchmarks/quantized.py seesay-demo --scores [--scenes 500] [--forms kv-int4,lite-auto_awq] [--jobs 1]

*speed*: the workloads *single*, *text* and *image* of h200.py, plain, with `--quantization fp8` and `int8`, with a
quantized KV cache, and of a folder with the same model that `seesay lite auto_awq` wrote. Ends with a table.

*kv*: by format of the KV cache, the milliseconds of a decode step of `--rows` sequences of `--context` tokens each, the
tokens that fit in 80 % of the memory beside the weights, and both as multiples of the plain cache's. A step is a whole
forward pass with its logits, from blank tokens; the least of `--rounds` is reported. Fewer blocks than the step reads
are allocated only where they do not fit: then rows share some, and `shares_blocks` says so.

*scores*: the right answers of the built-in model on `--scenes` scenes of each task, plain and in each form of
quantization (`--quantization`, the KV cache, what `seesay lite` writes), with the points that each may lose. The exit
status is 1 if one loses more. `--jobs` forms are measured at the same time, `--batch-size` scenes answered at once:
`--jobs 11 --batch-size 500` on a GPU of 80 GB.

Prints a line `RESULT {JSON}` per format or form, and the tables of speed and scores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from h200 import report
from quantized_scores import FORMS, measure_scores
from quantized_speed import make_forms, measure_speed

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.device.query import measure_memory, release_cached_memory
from seesay.device.streams import Stopwatch, on_stream
from seesay.engine.core.loading.resolved_config import resolve
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.opened_model import open_model
from seesay.llm.memory.kv_cache import KVCache, bytes_per_block, plan_num_blocks
from seesay.llm.memory.kv_layout import KVFormat
from seesay.llm.running.blank_input import make_blank_input
from seesay.llm.running.runner import ModelRunner

KV_FORMATS: tuple[KVFormat, ...] = get_args(KVFormat)
BLOCK_SIZE = 64
MEMORY_SHARE = 0.8


def load(model: str) -> ModelRunner:
    config = EngineConfig()
    opened = open_model(resolve_checkpoint(model), config)
    resolved = resolve(config, opened.checkpoint, opened.backbone)
    return load_runner(opened, resolved, max_step_tokens=8192, block_size=BLOCK_SIZE)


def measure_step_s(runner: ModelRunner, cache: KVCache, *, num_rows: int, context: int, num_rounds: int) -> float:
    """Seconds of the fastest decode step."""
    num_blocks = cache.num_blocks - 1
    inputs = make_blank_input(
        [1] * num_rows,
        [context] * num_rows,
        scratch_block=num_blocks,
        block_size=BLOCK_SIZE,
        device=runner.device,
        num_blocks=num_blocks,
    )
    found = []
    with torch.inference_mode(), on_stream(runner.stream):
        for _ in range(num_rounds + 2):  # the first ones compile
            stopwatch = Stopwatch(runner.stream)
            runner.decoder.logits(runner.decoder.forward(inputs, cache.layers))
            stopwatch.stop()
            found.append(stopwatch.seconds())
    return min(found[2:])


def measure_kv(
    runner: ModelRunner, format: KVFormat, *, num_rows: int, context: int, num_rounds: int
) -> dict[str, Any]:
    """The figures of one format."""
    runner.limits = replace(runner.limits, kv_format=format)
    layouts = runner.kv_layouts
    num_fitting = plan_num_blocks(
        memory=measure_memory(runner.device),
        reserved_bytes=0,
        share=MEMORY_SHARE,
        block_bytes=bytes_per_block(layouts),
        num_blocks_of_full_batch=num_rows * -(-context // BLOCK_SIZE),
        is_cpu=runner.device.type == "cpu",
    )
    num_read = num_rows * -(-context // BLOCK_SIZE)
    cache = KVCache(layouts, num_blocks=min(num_read, num_fitting) + 1, device=runner.device)
    step_s = measure_step_s(runner, cache, num_rows=num_rows, context=context, num_rounds=num_rounds)
    return {
        "step_ms": round(step_s * 1e3, 3),
        "tokens_that_fit": num_fitting * BLOCK_SIZE,
        "bytes_per_token": bytes_per_block(layouts) / BLOCK_SIZE,
        "shares_blocks": num_fitting < num_read,
    }


def measure_kv_formats(model: str, formats: Sequence[str], *, num_rows: int, context: int, num_rounds: int) -> None:
    runner = load(model)
    plain: dict[str, Any] | None = None
    for format in (format for format in KV_FORMATS if format in formats):
        found = measure_kv(runner, format, num_rows=num_rows, context=context, num_rounds=num_rounds)
        release_cached_memory(runner.device)
        plain = found if format == "plain" else plain
        ratios = {}
        if plain is not None:
            ratios = {
                "step_ratio": round(found["step_ms"] / plain["step_ms"], 3),
                "bytes_ratio": round(plain["bytes_per_token"] / found["bytes_per_token"], 3),
            }
        report(
            workload="kv",
            kv_format=format,
            rows=num_rows,
            context=context,
            device=str(runner.device),
            **found,
            **ratios,
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--speed", action="store_true", help="measure latency and throughput")
    chosen.add_argument("--kv", action="store_true", help="measure the KV cache")
    chosen.add_argument("--scores", action="store_true", help="count right answers")
    parser.add_argument("--formats", default=",".join(KV_FORMATS))
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--context", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--forms", help="of --speed or --scores, with commas (default: all)")
    parser.add_argument("--awq", help="the folder of a checkpoint")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests")
    parser.add_argument("--side-px", type=int, default=1024, help="of the pictures")
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    speed_forms = make_forms(options.awq)
    known = list(speed_forms) if options.speed else [form.name for form in FORMS]
    names = known if options.forms is None else options.forms.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--forms must be some of {','.join(known)}, got {unknown[0]!r}")
    if options.scores:
        return measure_scores(
            [form for form in FORMS if form.name in names],
            model=options.model,
            num_scenes=options.scenes,
            batch_size=options.batch_size,
            num_jobs=options.jobs,
        )
    if options.speed:
        chosen_forms = {name: speed_forms[name] for name in names}
        measure_speed(options.model, chosen_forms, scale=options.scale, side_px=options.side_px)
        return 0
    measure_kv_formats(
        options.model,
        options.formats.split(","),
        num_rows=options.rows,
        context=options.context,
        num_rounds=options.rounds,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
