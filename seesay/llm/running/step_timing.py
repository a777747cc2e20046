"""Times some steps at start, so that the first ones that are sized by time are of a good size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from seesay.device.streams import Stopwatch
from seesay.llm.memory.kv_cache import KVCache
from seesay.llm.models.decoder import Decoder
from seesay.llm.plans.step_times import StepCosts, count_pairs
from seesay.llm.running.blank_input import make_blank_input

TIMED_SIZES = (1, 16, 64, 128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 1792, 2048, 4096)
"""Tokens of the steps that are timed, twice: about 0.7 s of a 7B model on a large GPU."""
NUM_ROWS, NUM_CHUNK_TOKENS = 64, 512
"""Decode rows, and tokens of a prompt's chunk, with which contexts are timed."""
MAX_CONTEXT = 4096
SPREAD = 0.2
"""How far what is measured here may be from the truth: few steps are timed, and the clock of a busy GPU falls."""
LEAST_S = 1e-12
"""Of what is too short to be measured."""


def measure_step_costs(
    decoder: Decoder,
    cache: KVCache,
    *,
    sizes: Sequence[int],
    max_rows: int,
    num_blocks: int,
    session_len: int,
    stream: torch.Stream | None,
    begin_timing: Callable[[torch.Stream | None], Stopwatch] = Stopwatch,
) -> StepCosts:
    """Return the costs of steps that are padded to `sizes`, by computing some: whole forward passes of blank tokens.

    max_rows: the most that a step decodes, for which the device has memory.

    Reads the first `num_blocks` blocks of `cache`, whatever they contain, and writes into the one after them. Nothing
    waits for the device before all is launched; the longest step is the first, so that the host is ahead of the device.
    Everything is timed twice, and the shorter time counts: a kernel that is first used here is loaded meanwhile, which
    takes long, above all where its library was never read since the machine started.
    """

    def start(num_new: list[int], kv_lens: list[int]) -> Callable[[], float]:
        inputs = make_blank_input(
            num_new,
            kv_lens,
            scratch_block=num_blocks,
            block_size=cache.block_size,
            device=decoder.device,
            num_blocks=num_blocks,
            has_runs=decoder.traits.has_runs,
        )
        wanted = torch.arange(len(num_new), device=decoder.device)
        stopwatch = begin_timing(stream)
        decoder.logits(decoder.forward(inputs, cache.layers, wanted))
        stopwatch.stop()
        return stopwatch.seconds

    timed = sorted({min(size, sizes[-1]) for size in TIMED_SIZES})
    num_rows, num_tokens = min(NUM_ROWS, max_rows, sizes[-1]), min(NUM_CHUNK_TOKENS, sizes[-1])
    context = max(1, min(MAX_CONTEXT, session_len - num_tokens, num_blocks * cache.block_size - num_tokens))
    start([timed[-1]], [timed[-1]])
    steps = [[start([size], [size]) for size in reversed(timed)] for _ in range(2)]
    chunks = [[start([num_tokens], [length + num_tokens]) for length in (0, context)] for _ in range(2)]
    rows = [[start([1] * num_rows, [length + 1] * num_rows) for length in (0, context)] for _ in range(2)]
    measured = np.minimum.accumulate([min(seconds() for seconds in same) for same in zip(*steps, strict=True)])[::-1]
    token_s = float(measured[-1]) / timed[-1]
    pair_s = _find_slope(chunks, num_tokens * context, most=token_s)
    context_s = _find_slope(rows, num_rows * context, most=token_s)
    seconds = [max(LEAST_S, total - pair_s * count_pairs(0, size)) for size, total in zip(timed, measured, strict=True)]
    padded = [size for size in sizes if size <= timed[-1]]
    return StepCosts(
        sizes=padded,
        seconds=np.interp(padded, timed, np.maximum.accumulate(seconds)).tolist(),
        context_s=context_s,
        pair_s=pair_s,
        is_padded=True,
        spread=SPREAD,
    )


def _find_slope(trials: Sequence[Sequence[Callable[[], float]]], num: int, *, most: float) -> float:
    """Return the seconds per unit of `num`, by which the second step of each trial has more than the first."""
    short_s, long_s = (min(seconds() for seconds in same) for same in zip(*trials, strict=True))
    slope_s: float = (long_s - short_s) / num
    return min(most, max(LEAST_S, slope_s))
