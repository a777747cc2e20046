"""Processor time of the engine loop for a decode step, without the runner's. Needs no GPU.

    python benchmarks/loop_host.py [--rows 512] [--steps 100]

A real scheduler plans a steady batch of streamed answers one step ahead, commits what a runner that computes nothing
gives, and the loop hands the tokens to a frontend in another process: messages are encoded, and nobody reads them. A
sequence gets a block whenever its last one is full. `benchmarks/decode_host.py` measures the runner's part. Prints a
JSON line: microseconds of the loop's thread per row and step, the least of the steps' quarters, and their median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch

from seesay.config import VisionConfig
from seesay.engine.core.loop import EngineLoop
from seesay.engine.process import kinds
from seesay.engine.process.service import Service
from seesay.engine.process.writer import Done
from seesay.engine.token_messages import TokenRequest
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import StepResult
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.values import MultimodalInput

PROMPT_TOKENS = 40
BLOCK_SIZE = 64
NUM_UNTIMED = 8
END_S = 120.0


class Encoding:
    """A link that encodes messages and sends them nowhere. `is_over` is set by the last output of `num_requests`."""

    def __init__(self, num_requests: int) -> None:
        self.is_over = threading.Event()
        self._num_left = num_requests
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: kinds.ToFrontend, done: Done | None = None) -> None:
        self._encoder.encode(message)
        if done is not None:
            done(None)
        if isinstance(message, kinds.Outputs):
            self._num_left -= sum(output.finish_reason is not None for output in message.outputs)
            if not self._num_left:
                self.is_over.set()


class IdleRunner:
    """Gives each row that samples the same token, at once. `times_s`: of the loop's thread, at each launch of a step in
    which all rows decode."""

    samples_late = False

    def __init__(self, num_rows: int) -> None:
        self.decoder = SimpleNamespace(traits=SimpleNamespace(embedding_size=8, vocab_size=16))
        self.device, self.dtype, self.stream = torch.device("cpu"), torch.float32, None
        self.times_s: list[float] = []
        self._num_rows = num_rows

    def apply(self, plan: StepPlan) -> None:
        pass

    def step(self, plan: StepPlan, embeddings: object) -> Any:
        del embeddings
        return plan, self._launch(plan) if plan.rows else None, {}

    def _launch(self, plan: StepPlan) -> Any:
        if len(plan.rows) == self._num_rows == plan.num_tokens:
            self.times_s.append(time.thread_time())
        result = StepResult(token_ids={row.seq_id: (7,) for row in plan.rows if row.samples})
        return SimpleNamespace(collect=lambda: result, is_sampled=True)

    def sample(self, launched: object, *, processors: object) -> None:
        pass

    def collect(self, launched: Any) -> StepResult:
        result: StepResult = launched.collect()
        return result


def make_loop(runner: Any, num_rows: int, num_tokens: int) -> EngineLoop:
    """A loop one step ahead, with room for all rows."""
    session_len = PROMPT_TOKENS + num_tokens + 1
    pool = BlockPool(num_rows * -(-session_len // BLOCK_SIZE), BLOCK_SIZE)
    config = SchedulerConfig(max_batch_size=num_rows, max_prefill_token_num=8192, session_len=session_len)
    return EngineLoop(
        scheduler=Scheduler(config, pool), runner=runner, encoder=None, vision_config=VisionConfig(), is_ahead=True
    )


def make_requests(num_rows: int, num_tokens: int) -> list[TokenRequest]:
    """Streamed requests with different prompts."""
    params = SamplingParams(max_new_tokens=num_tokens, eos_token_ids=(1, 2), ignore_eos=False)
    return [
        TokenRequest(
            request_id=index,
            prompt=MultimodalInput(
                token_ids=np.arange(PROMPT_TOKENS) + 10 * index,
                positions=np.arange(PROMPT_TOKENS),
                next_position=PROMPT_TOKENS,
            ),
            params=params,
            owner=b"owner",
            is_streamed=True,
        )
        for index in range(num_rows)
    ]


def measure(num_rows: int, num_steps: int) -> dict[str, float]:
    """Return the figures of steps of `num_rows` rows."""
    num_tokens = NUM_UNTIMED + num_steps
    runner, link = IdleRunner(num_rows), Encoding(num_rows)
    loop = make_loop(runner, num_rows, num_tokens)
    service = Service(link, loop, None, beat_s=1.0)  # type: ignore[arg-type]
    loop.start(service)
    loop.submit(make_requests(num_rows, num_tokens))
    assert link.is_over.wait(END_S), "the answers did not end"
    loop.close()
    steps_us = 1e6 * np.diff(runner.times_s[NUM_UNTIMED:]) / num_rows
    quarters = [float(np.mean(quarter)) for quarter in np.array_split(steps_us, 4)]
    return {"least_us": round(min(quarters), 2), "median_us": round(statistics.median(steps_us.tolist()), 2)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(argv)
    figures = measure(options.rows, options.steps)
    print(json.dumps({"what": "loop_host", "rows": options.rows, "steps": options.steps, **figures}))


if __name__ == "__main__":
    main()
