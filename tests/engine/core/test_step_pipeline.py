"""Steps in flight, without a model: what their results tell of the time they took."""

from __future__ import annotations

from typing import Any

from seesay.device.tower_pacer import TowerPacer
from seesay.engine.core.grammar_rows import GrammarRows
from seesay.engine.core.step_pipeline import StepPipeline
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import StepResult


class Stream:
    def record_event(self) -> str:
        return "event"

    def wait_event(self, event: str) -> None:
        assert event == "event"


class Launched:
    def collect(self) -> StepResult:
        return StepResult(seconds=0.5)


class Runner:
    stream = Stream()

    def launch(self, plan: StepPlan, splices: object) -> Launched:
        return Launched()

    def sample(self, launched: Launched, *, processors: object) -> None:
        pass


def test_a_step_beside_a_call_of_the_tower_has_no_duration() -> None:
    pacer, runner, seconds = TowerPacer(max_launch_s=0.01), Runner(), list[float | None]()
    any_runner: Any = runner
    flight = StepPipeline(
        any_runner,
        pacer,
        processors={},
        grammars=GrammarRows(None, vocab_size=1, resume=lambda _: None),
        commit=lambda _plan, result: seconds.append(result.seconds),
        announce_forced_tokens=lambda _seq_id, _num_tokens: None,
        fail=lambda _seq_id, error: None,
    )
    flight.launch(StepPlan(), {})
    any_stream: Any = runner.stream
    with pacer.call(any_stream):
        flight.launch(StepPlan(), {})
    flight.launch(StepPlan(), {})
    flight.collect()
    assert seconds == [0.5, None, 0.5]
