"""Steps in flight, without a model: what is committed of them, and what their results tell of the time they took."""

from __future__ import annotations

from typing import Any

from seesay.device.tower_pacer import TowerPacer
from seesay.encoders.store import EmbeddingStore
from seesay.engine.core.grammar_rows import GrammarRows
from seesay.engine.core.step_pipeline import StepPipeline
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.step_plan import Row, StepPlan
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
    """`refused`: the sequences whose rows cannot be computed."""

    stream = Stream()
    refused: frozenset[int] = frozenset()

    def step(self, plan: StepPlan, embeddings: object) -> Any:
        left = plan.without(self.refused)
        errors = {row.seq_id: RequestError(ErrorCode.INTERNAL, "refused") for row in plan.rows if row not in left.rows}
        return left, Launched() if left.rows else None, errors

    def sample(self, launched: Launched, *, processors: object) -> None:
        pass

    def collect(self, launched: Launched) -> StepResult:
        return launched.collect()


def make_flight(runner: Any, **calls: Any) -> StepPipeline:
    calls = {"commit": lambda _plan, _result: None, "fail": lambda _seq_id, _error: None, **calls}
    return StepPipeline(
        runner,
        calls.pop("pacer", None) or TowerPacer(),
        processors={},
        grammars=GrammarRows(None, vocab_size=1, resume=lambda *_: None),
        announce_forced_tokens=lambda _seq_id, _num_tokens: None,
        **calls,
    )


def make_plan(*seq_ids: int) -> StepPlan:
    return StepPlan(rows=tuple(Row(seq_id, 0, 1, True) for seq_id in seq_ids))


def test_rows_that_cannot_be_computed_end_their_sequences_and_are_not_committed() -> None:
    runner, committed, ended = Runner(), list[StepPlan](), list[int]()
    runner.refused = frozenset({2})
    flight = make_flight(
        runner, commit=lambda plan, _: committed.append(plan), fail=lambda seq_id, _: ended.append(seq_id)
    )
    assert flight.launch(make_plan(1, 2), EmbeddingStore(0))
    assert ended == [2] and not committed
    assert not flight.launch(make_plan(2), EmbeddingStore(0)), "no row is left"
    assert not flight.launch(StepPlan(), EmbeddingStore(0))
    assert ended == [2, 2] and not flight.is_empty, "the first step is still in flight"
    flight.collect()
    assert [plan.rows for plan in committed] == [make_plan(1).rows]


def test_a_step_beside_a_call_of_the_tower_has_no_duration() -> None:
    pacer, runner, seconds = TowerPacer(max_launch_s=0.01), Runner(), list[float | None]()
    flight = make_flight(runner, pacer=pacer, commit=lambda _plan, result: seconds.append(result.seconds))
    plan, store = make_plan(1), EmbeddingStore(0)
    flight.launch(plan, store)
    any_stream: Any = runner.stream
    with pacer.call(any_stream):
        flight.launch(plan, store)
    flight.launch(plan, store)
    flight.collect()
    assert seconds == [0.5, None, 0.5]
