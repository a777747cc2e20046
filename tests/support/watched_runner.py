"""A runner whose steps a test sees, or spoils, by overriding what the engine calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seesay.engine.front.starting import CoreParts
from seesay.llm.models.decoder import Decoder
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits


class WatchedRunner(ModelRunner):
    """A runner that is told, by `collect`, when the results of a step are taken. `launch_plan` launches one."""

    def launch_plan(self, plan: StepPlan, splices: Any) -> LaunchedStep:
        return super().launch(plan, splices)

    def collect(self, launched: LaunchedStep) -> StepResult:
        return launched.collect()

    def launch(self, plan: StepPlan, splices: Any) -> Any:
        return _WatchedStep(self, self.launch_plan(plan, splices))

    def sample(self, launched: Any, *others: Any, **options: Any) -> None:
        super().sample(launched.launched, *others, **options)


class _WatchedStep:
    """A launched step, whose runner collects it."""

    def __init__(self, runner: WatchedRunner, launched: LaunchedStep) -> None:
        self._runner, self.launched = runner, launched

    def collect(self) -> StepResult:
        return self._runner.collect(self.launched)


def watched(make_runner: Callable[[Decoder, RunnerLimits], ModelRunner]) -> CoreParts:
    """Return the parts of an engine whose runner `make_runner` makes."""
    return CoreParts(make_runner=make_runner)
