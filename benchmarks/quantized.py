"""What quantization saves: the KV cache in fewer bits.

    python benchmarks/quantized.py MODEL_DIR --kv [--formats plain,int8,fp8,int4] [--rows 128] [--context 8000]

*kv*: by format of the KV cache, the milliseconds of a decode step of `--rows` sequences of `--context` tokens each, the
tokens that fit in 80 % of the memory beside the weights, and both as multiples of the plain cache's. A step is a whole
forward pass with its logits, from blank tokens; the least of `--rounds` is reported. Fewer blocks than the step reads
are allocated only where they do not fit: then rows share some, and `shares_blocks` says so.

Prints a line `RESULT {JSON}` per format.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, get_args

import torch
from h200 import report

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.device.query import measure_memory, release_cached_memory
from seesay.device.streams import Stopwatch, on_stream
from seesay.engine.loading import load_runner, resolve
from seesay.engine.opened_model import open_model
from seesay.llm.kv_cache import KVCache, bytes_per_block, plan_num_blocks
from seesay.llm.kv_layout import KVFormat
from seesay.llm.runner import ModelRunner
from seesay.llm.step_input import make_blank_input

FORMATS: tuple[KVFormat, ...] = get_args(KVFormat)
BLOCK_SIZE = 64
MEMORY_SHARE = 0.8


def load(model: str) -> ModelRunner:
    config = EngineConfig()
    opened = open_model(resolve_checkpoint(model), config)
    resolved = resolve(config, opened.checkpoint, opened.backbone.text_config)
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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kv", action="store_true", required=True, help="measure the KV cache")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--context", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args(arguments)
    formats = [format for format in FORMATS if format in options.formats.split(",")]
    runner = load(options.model)
    plain: dict[str, Any] | None = None
    for format in formats:
        found = measure_kv(runner, format, num_rows=options.rows, context=options.context, num_rounds=options.rounds)
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
            rows=options.rows,
            context=options.context,
            device=str(runner.device),
            **found,
            **ratios,
        )


if __name__ == "__main__":
    main()
