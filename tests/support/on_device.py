"""Engines of one small model on `examples/my_device` and on the CPU, and what crosses between host and device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from watched_runner import watched

from seesay import EngineConfig, GenerationConfig, VisionConfig
from seesay.demo.evaluate import messages_for
from seesay.demo.scenes import FIRST_EVALUATION_SEED, make_example
from seesay.device.query import pick_device
from seesay.engine.front.engine import AsyncEngine
from seesay.llm.models.decoder import Decoder
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.offline.pipeline import Pipeline

DEMO = Path(__file__).parents[2] / "seesay" / "demo" / "checkpoint"
SMALL: dict[str, Any] = {
    "dtype": "float32", "engine_process": False, "num_gpu_blocks": 80, "max_batch_size": 4, "session_len": 512,
    "max_prefill_token_num": 160, "block_size": 16, "max_step_ms": None,
    "jump_ahead": False,
}  # fmt: skip
GREEDY = GenerationConfig(max_new_tokens=12, do_sample=False, ignore_eos=True)


def make_prompts() -> list[Any]:
    """Questions about a picture, two pictures, a clip, written letters, and none."""
    tasks = ("attribute", "compare", "motion", "read", "arithmetic")
    return [messages_for(make_example(task, FIRST_EVALUATION_SEED)) for task in tasks]


@contextmanager
def open_engine(device: str, path: Path = DEMO, *, core_parts: Any = None, **options: Any) -> Iterator[Pipeline]:
    vision = options.pop("vision_config", VisionConfig())
    config = EngineConfig(device_type=device, **{**SMALL, **options})
    with AsyncEngine(str(path), backend_config=config, vision_config=vision, core_parts=core_parts) as engine:
        yield Pipeline.from_engine(engine)


def ask(pipe: Pipeline, prompts: list[Any] | None = None, gen_config: GenerationConfig = GREEDY) -> list[list[int]]:
    """Return the tokens of the answers."""
    responses = pipe(make_prompts() if prompts is None else prompts, gen_config=gen_config)
    assert all(response.error is None for response in responses), [response.error for response in responses]
    return [list(response.token_ids) for response in responses]


class Crossing(NamedTuple):
    """What a step sent and fetched. is_decode: it computed one token per row. waits: of the host, for a value."""

    is_decode: bool
    copies_to_device: int
    copies_to_host: int
    waits: int


class CountingRunner(ModelRunner):
    """Counts what crosses between host and device in each step."""

    def __init__(self, decoder: Decoder, limits: RunnerLimits, crossings: list[Crossing]) -> None:
        super().__init__(decoder, limits)
        self._read: Callable[[], Any] = importlib.import_module("my_device.device").read_counters
        self._crossings = crossings
        self._before = self._read()
        self._plan: StepPlan | None = None

    def apply(self, plan: StepPlan) -> None:
        self._before, self._plan = self._read(), plan
        super().apply(plan)

    def collect(self, launched: LaunchedStep) -> StepResult:
        result = super().collect(launched)
        now, before, plan = self._read(), self._before, self._plan
        assert plan is not None
        is_decode = bool(plan.rows) and all(row.num_tokens == 1 for row in plan.rows)
        self._crossings.append(
            Crossing(
                is_decode,
                now.copies_to_device - before.copies_to_device,
                now.copies_to_host - before.copies_to_host,
                now.waits - before.waits,
            )
        )
        return result


def count_crossings(
    device: str, prompts: list[Any], gen_config: GenerationConfig = GREEDY, **options: Any
) -> tuple[list[list[int]], list[Crossing]]:
    """Return the answers, and what crossed in each step. Steps come one after the other."""
    crossings: list[Crossing] = []
    parts = watched(lambda decoder, limits: CountingRunner(decoder, limits, crossings))
    with open_engine(device, core_parts=parts, async_scheduling=False, **options) as pipe:
        crossings.clear()
        return ask(pipe, prompts, gen_config), crossings


def load_device() -> str:
    """Add the device to PyTorch. Returns its name."""
    assert pick_device("npu").type == "npu"
    return "npu"
