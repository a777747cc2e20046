"""What a step of the engine costs while many requests wait. Needs no GPU.

    python benchmarks/many_waiting.py [--waiting 20000] [--pictures 10000]

Prints a JSON line: milliseconds to plan a step while `--waiting` sequences of 50 owners wait, 1,000 of them equal
prompts of 100,000 tokens, the median and the longest of 100 steps; and the longest time between two steps of a loop
that answers ten requests while 10, and while `--pictures` requests with pictures come and wait for a slow encoder,
and what of that its thread computes.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Mapping
from collections.abc import Sequence as Values
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from seesay.config import VisionConfig
from seesay.engine.core.loop import EngineLoop
from seesay.engine.engine_core import CoreListener
from seesay.engine.token_messages import TokenRequest
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import StepResult
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MediaItem, Modality, MultimodalInput

NUM_OWNERS = 50
NUM_LONG = 1_000
LONG_TOKENS = 100_000
NUM_STEPS = 100
NUM_ANSWERS = 10
ANSWER_TOKENS = 600
ROWS_OF_PICTURE = 64
ENCODE_S = 0.05
STEP_S = 0.003
END_S = 300.0


def make_prompt(number: int, num_tokens: int, *, has_picture: bool = False) -> MultimodalInput:
    """A prompt unlike those of other numbers."""
    slots = np.arange(8, 8 + ROWS_OF_PICTURE)
    item = MediaItem(
        modality=Modality.IMAGE,
        span=(8, 8 + ROWS_OF_PICTURE),
        slots=slots,
        hash=number.to_bytes(32, "little"),
        features={"pixels": np.zeros((ROWS_OF_PICTURE, 4), dtype=np.float32)},
        num_units=ROWS_OF_PICTURE,
    )
    return MultimodalInput(
        token_ids=np.arange(num_tokens) + 7 * number,
        positions=np.arange(num_tokens),
        next_position=num_tokens,
        items=(item,) if has_picture else (),
    )


def measure_plans(num_waiting: int) -> dict[str, float]:
    """Return the milliseconds of `plan_step` beside 128 answers, in a batch that has room for as many more."""
    config = SchedulerConfig(max_batch_size=256, max_prefill_token_num=8192, session_len=LONG_TOKENS + 1000)
    scheduler = Scheduler(config, BlockPool(20_000, 64))
    long = make_prompt(0, LONG_TOKENS)
    for number in range(128):
        params = SamplingParams(max_new_tokens=800)
        scheduler.add(Sequence(number, make_prompt(number, 40), params, owner=number % NUM_OWNERS))
    for number in range(128, num_waiting + 128):
        is_long = number % (num_waiting // NUM_LONG) == 0
        prompt = long if is_long else make_prompt(number, 500)
        params = SamplingParams(max_new_tokens=800)
        scheduler.add(Sequence(number, prompt, params, owner=number % NUM_OWNERS))
    times_ms = []
    for _ in range(NUM_STEPS):
        began = time.perf_counter()
        plan = scheduler.plan_step()
        times_ms.append(1e3 * (time.perf_counter() - began))
        scheduler.commit_step(plan, {row.seq_id: (7,) for row in plan.rows if row.samples})
    return {"plan_median_ms": round(statistics.median(times_ms), 2), "plan_longest_ms": round(max(times_ms), 2)}


class IdleRunner:
    """Gives each row that samples the same token, after `STEP_S`. `launches`: of each step with answers, when it was
    launched, and the CPU time of the loop's thread then, both in seconds."""

    samples_late = False

    def __init__(self) -> None:
        self.decoder = SimpleNamespace(traits=SimpleNamespace(embedding_size=8, vocab_size=16))
        self.device, self.dtype, self.stream = torch.device("cpu"), torch.float32, None
        self.launches: list[tuple[float, float]] = []

    def apply(self, plan: StepPlan) -> None:
        pass

    def step(self, plan: StepPlan, embeddings: object) -> Any:
        del embeddings
        return plan, self._launch(plan) if plan.rows else None, {}

    def _launch(self, plan: StepPlan) -> Any:
        if any(row.seq_id < NUM_ANSWERS for row in plan.rows):
            self.launches.append((time.perf_counter(), time.thread_time()))

        def collect() -> StepResult:
            time.sleep(STEP_S)
            return StepResult(token_ids={row.seq_id: (7,) for row in plan.rows if row.samples})

        return SimpleNamespace(collect=collect, is_sampled=True)

    def sample(self, launched: object, *, processors: object) -> None:
        pass

    def collect(self, launched: Any) -> StepResult:
        result: StepResult = launched.collect()
        return result


class SlowEncoder:
    """A tower that takes its time for each batch."""

    device = torch.device("cpu")

    def disable_graphs(self) -> None:
        pass

    def encode(self, features: Values[Mapping[str, np.ndarray]]) -> list[torch.Tensor]:
        time.sleep(ENCODE_S)
        return [torch.zeros(ROWS_OF_PICTURE, 8) for _ in features]


class Listener(CoreListener):
    """Counts the answers that are over."""

    def __init__(self) -> None:
        self.num_over = 0

    def on_outputs(self, outputs: Any) -> None:
        self.num_over += sum(o.finish_reason is not None and o.request_id < NUM_ANSWERS for o in outputs)

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        raise AssertionError(f"request {request_id} came with the arrays of its item {item_index}")

    def on_encoding(self, item_hash: bytes) -> None:
        pass


def measure_gaps(num_pictures: int) -> dict[str, float]:
    """Return the milliseconds of the longest time between two steps with answers while requests with pictures come and
    wait, and the most milliseconds that the loop's thread computed between two."""
    runner, listener = IdleRunner(), Listener()
    config = SchedulerConfig(max_batch_size=NUM_ANSWERS + 1, max_prefill_token_num=8192, session_len=2000)
    loop = EngineLoop(
        scheduler=Scheduler(config, BlockPool(2000, 64)),
        runner=runner,  # type: ignore[arg-type]
        encoder=SlowEncoder(),
        vision_config=VisionConfig(),
        is_ahead=True,
    )
    loop.start(listener)
    answer = SamplingParams(max_new_tokens=ANSWER_TOKENS)
    loop.submit([TokenRequest(request_id=n, prompt=make_prompt(n, 40), params=answer) for n in range(NUM_ANSWERS)])
    numbers = range(NUM_ANSWERS, NUM_ANSWERS + num_pictures)
    prompts = [make_prompt(number, 200, has_picture=True) for number in numbers]
    params = SamplingParams(max_new_tokens=1)
    loop.submit([TokenRequest(request_id=n, prompt=p, params=params) for n, p in zip(numbers, prompts, strict=True)])
    end_s = time.perf_counter() + END_S
    while listener.num_over < NUM_ANSWERS and time.perf_counter() < end_s:
        time.sleep(0.01)
    loop.close()
    gap_s, computed_s = np.diff(runner.launches, axis=0).max(axis=0)
    return {
        f"longest_gap_{num_pictures}_ms": round(1e3 * float(gap_s), 2),
        f"most_computed_{num_pictures}_ms": round(1e3 * float(computed_s), 2),
    }


def main(argv: Values[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=20_000)
    parser.add_argument("--pictures", type=int, default=10_000)
    options = parser.parse_args(argv)
    gc.disable()  # its collections would visit the prompts that are made here
    try:
        figures = measure_plans(options.waiting) | measure_gaps(10) | measure_gaps(options.pictures)
    finally:
        gc.enable()
    print(json.dumps({"what": "many_waiting", "waiting": options.waiting, **figures}))


if __name__ == "__main__":
    main()
