"""Faults for the differential test: steps, copies between device and host, and messages that fail or are late."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seesay.engine.core.loop import EngineLoop
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.step_input import StepRows

if TYPE_CHECKING:
    from differential import Asked

RATES: Mapping[str, float] = {
    "before launch": 0.02,
    "in launch": 0.02,
    "after launch": 0.02,
    "before sample": 0.01,
    "after sample": 0.01,
    "before collect": 0.03,
    "after collect": 0.03,
    "before copy": 0.02,
    "after copy": 0.02,
    "encode": 0.1,
    "slow tower": 0.3,
    "late message": 0.3,
}


class Injected(RuntimeError):
    """A fault that the test made."""


@dataclass
class Faults:
    """What goes wrong, and how often: probabilities by name.

    Those may end with an error that were alone in a step that failed (`blamed`), or waited for a picture when the tower
    failed on it alone (`failed_pictures`: which, and when); nobody else may. `report`: the file in which an engine
    process says which these were, when it ends.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    blamed: set[int] = field(default_factory=set)
    failed_pictures: list[tuple[int, float]] = field(default_factory=list)
    report: Path | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def strike(self, name: str, step: StepPlan | StepRows | None = None) -> None:
        """Raise now and then. A step of one row is spared mostly: it fails for good."""
        rate = self.rates.get(name, 0.0)
        alone = step.rows[0] if step is not None and len(step.rows) == 1 else None
        if self._rng.random() >= rate * (0.02 if alone else 1.0):
            return
        if alone:
            self.blamed.add(alone.seq_id)
        self.counts[name] = self.counts.get(name, 0) + 1
        raise Injected(name)

    def before_copy(self, saves: Sequence[Any], loads: Sequence[Any]) -> None:
        """Blocks are about to be copied between device and host."""
        if saves or loads:
            self.strike("before copy")

    def linger(self, name: str) -> None:
        """Work takes a moment here, or the thread is suspended."""
        if self._rng.random() < self.rates.get(name, 0.0):
            time.sleep(self._rng.random() * 0.004)

    def explains(self, error: Exception | None, request_id: int, asked: Asked) -> bool:
        """Whether a request may have ended with this error."""
        if Injected.__name__ not in str(error):
            return False
        return request_id in self.blamed or any(
            number in asked.question.pictures and asked.asked_at < failed_at < asked.ended_at
            for number, failed_at in self.failed_pictures
        )


def inject_into(loop: EngineLoop, faults: Faults) -> None:
    """Let steps, copies and the worker's messages of `loop` fail or be late."""
    runner: Any = loop._runner
    launch, sample, collect, forward = runner.launch, runner.sample, runner.collect, runner.decoder.forward
    current: list[StepPlan] = []

    def faulty_launch(plan: StepPlan, *others: Any) -> LaunchedStep:
        current[:] = [plan]
        faults.strike("before launch", plan)
        launched: LaunchedStep = launch(plan, *others)
        faults.strike("after launch", plan)
        return launched

    def faulty_sample(launched: LaunchedStep, *others: Any, **options: Any) -> None:
        faults.strike("before sample", launched.step)
        sample(launched, *others, **options)
        faults.strike("after sample", launched.step)

    def faulty_collect(launched: LaunchedStep) -> StepResult:
        faults.strike("before collect", launched.step)
        result: StepResult = collect(launched)
        faults.strike("after collect", launched.step)
        return result

    def faulty_forward(*inputs: Any) -> Any:
        hidden = forward(*inputs)
        faults.strike("in launch", current[0])
        return hidden

    runner.launch, runner.sample, runner.collect = faulty_launch, faulty_sample, faulty_collect
    runner.decoder.forward = faulty_forward
    if runner._host_cache is not None:
        copy = runner._host_cache.copy

        def faulty_copy(saves: Any, loads: Any) -> None:
            faults.before_copy(saves, loads)
            copy(saves, loads)
            if saves or loads:
                faults.strike("after copy")

        runner._host_cache.copy = faulty_copy
    worker: Any = loop.embeddings.worker
    worker._on_ready, worker._on_failed = delay(worker._on_ready, faults), delay(worker._on_failed, faults)


def delay(report: Callable[..., None], faults: Faults) -> Callable[..., None]:
    def late(*message: Any) -> None:
        faults.linger("late message")
        report(*message)

    return late
