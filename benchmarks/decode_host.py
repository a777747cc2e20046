"""How long the host takes for a decode step by CUDA graphs, and how much it copies to the device. Needs no GPU.

    python benchmarks/decode_host.py [--rows 512] [--steps 200]

A real `ModelRunner` follows plans of a steady batch, one step ahead, in which a sequence gets a block whenever its last
one is full. Graphs and draws compute nothing, so the times are the host's alone. Prints a JSON line for greedy rows and
one for rows that are drawn: medians, in microseconds, of what `apply`, `launch`, `sample` and `collect` take, and the
bytes that a step copies to the device, median and most.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.device.transfers import upload
from seesay.engine.core.loading.resolved_config import resolve
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.opened_model import open_model
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import AddedBlocks, BegunSequence, Row, StepPlan
from seesay.llm.running import device_rows, sampler
from seesay.llm.running.decode_graphs import DecodeGraphs, DecodeOutput
from seesay.llm.running.launched_step import LaunchedStep
from seesay.llm.running.runner import ModelRunner

KINDS = {
    "greedy": SamplingParams(),
    "temperature 0.7, top-p 0.9": SamplingParams(greedy=False, temperature=0.7, top_p=0.9),
}
PROMPT_TOKENS = (600, 800)
BLOCK_SIZE = 16
NUM_UNTIMED = 8


def record_nothing(run: Callable[[], DecodeOutput]) -> tuple[Callable[[], None], DecodeOutput]:
    """Record an empty graph: a replay does nothing."""
    del run
    ids = torch.zeros(4096, dtype=torch.int64)
    logits = torch.zeros(1, 1).expand(len(ids), 1 << 15)
    return lambda: None, DecodeOutput(
        states=logits[:, :1], logits=logits, best=ids.float(), token_ids=ids, faults=ids.float()
    )


def make_runner(num_rows: int, num_steps: int) -> ModelRunner:
    """A runner on the CPU with empty graphs."""
    session_len = PROMPT_TOKENS[1] + num_steps + BLOCK_SIZE
    config = EngineConfig(device_type="cpu", dtype="float32", max_batch_size=num_rows, session_len=session_len)
    opened = open_model(resolve_checkpoint("seesay-demo"), config)
    resolved = resolve(config, opened.checkpoint, opened.backbone)
    runner = load_runner(opened, resolved, max_step_tokens=num_rows, block_size=BLOCK_SIZE)
    runner.allocate_cache(num_blocks=-(-session_len // BLOCK_SIZE), share=0.5)
    assert runner._cache is not None
    runner._graphs = DecodeGraphs(
        runner.decoder, runner._cache.layers, runner.device_rows, record=record_nothing, block_size=BLOCK_SIZE
    )
    return runner


def begin(runner: ModelRunner, params: SamplingParams, num_rows: int) -> npt.NDArray[np.int64]:
    """Let the runner know sequences whose prompts are computed. Returns their lengths."""
    lengths = np.random.default_rng(0).integers(*PROMPT_TOKENS, num_rows)
    begun = tuple(
        BegunSequence(
            seq_id=index,
            token_ids=np.zeros(length + 1, dtype=np.int64),
            num_prompt_tokens=length,
            positions=np.arange(length),
            next_position=length,
            params=params,
            seed=index,
        )
        for index, length in enumerate(lengths.tolist())
    )
    blocks = tuple(AddedBlocks(one.seq_id, (0,) * (one.num_prompt_tokens // BLOCK_SIZE + 1)) for one in begun)
    runner.apply(StepPlan(begun=begun, added_blocks=blocks))
    return lengths


def time_steps(params: SamplingParams, num_rows: int, num_steps: int) -> dict[str, Any]:
    """The figures of one kind of rows."""
    runner = make_runner(num_rows, num_steps)
    starts = begin(runner, params, num_rows)
    copied = [0]

    def count_upload(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
        copied[-1] += sum(array.nbytes for array in arrays)
        return upload(arrays, device)

    times: dict[str, list[float]] = {"apply": [], "launch": [], "sample": [], "collect": []}
    before: LaunchedStep | None = None
    with (
        mock.patch.object(device_rows, "upload", count_upload),
        mock.patch.object(sampler, "draw_tokens", mock.Mock()),
        mock.patch.object(ComposedDecoder, "needs_clean_blocks", False),  # as on a GPU
    ):
        for _ in range(num_steps):
            full = np.flatnonzero(starts % BLOCK_SIZE == 0).tolist()
            rows = tuple(Row(index, start, 1, True) for index, start in enumerate(starts.tolist()))
            plan = StepPlan(rows=rows, added_blocks=tuple(AddedBlocks(index, (1,)) for index in full))
            copied.append(0)
            at = [time.perf_counter()]
            runner.apply(plan)
            at.append(time.perf_counter())
            launched = runner.launch(plan, {})
            at.append(time.perf_counter())
            runner.sample(launched)
            at.append(time.perf_counter())
            if before is not None:
                before.collect()
            at.append(time.perf_counter())
            for name, seconds in zip(times, np.diff(at), strict=True):
                times[name].append(seconds * 1e6)
            before, starts = launched, starts + 1
    figures = {f"{name}_us": round(median(values[NUM_UNTIMED:])) for name, values in times.items()}
    sizes = copied[1 + NUM_UNTIMED :]
    return {**figures, "bytes": round(median(sizes)), "most_bytes": max(sizes)}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    for name, params in KINDS.items():
        figures = time_steps(params, options.rows, NUM_UNTIMED + options.steps)
        print(json.dumps({"rows": options.rows, "options": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
