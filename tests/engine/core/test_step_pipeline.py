"""Steps in flight, without a model: what is committed of them, and what their results tell of the time they took."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from seesay.device.tower_pacer import TowerPacer
from seesay.encoders.store import EmbeddingStore
from seesay.engine.core.grammars.step_masks import StepMasks
from seesay.engine.core.step_pipeline import StepFailedError, StepPipeline
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.step_plan import Row, StepPlan
from seesay.llm.running.launched_step import StepResult


class Stream:
    def record_event(self) -> str:
        return "event"

    def wait_event(self, event: str) -> None:
        assert event == "event"


class Launched:
    is_sampled = False

    def collect(self) -> StepResult:
        return StepResult(seconds=0.5)


class Runner:
    """`refused`: the sequences whose rows cannot be computed."""

    stream = Stream()
    samples_late = False
    refused: frozenset[int] = frozenset()

    def step(self, plan: StepPlan, embeddings: object) -> Any:
        left = plan.without(self.refused)
        errors = {row.seq_id: RequestError(ErrorCode.INTERNAL, "refused") for row in plan.rows if row not in left.rows}
        return left, Launched() if left.rows else None, errors

    def sample(self, launched: Launched, masks: object = None, *, processors: object) -> None:
        assert not launched.is_sampled
        launched.is_sampled = True

    def collect(self, launched: Launched) -> StepResult:
        return launched.collect()


class LateRunner(Runner):
    """`begun`: the steps that were launched."""

    samples_late = True

    def __init__(self) -> None:
        self.begun: list[Launched] = []

    def step(self, plan: StepPlan, embeddings: object) -> Any:
        found = super().step(plan, embeddings)
        self.begun.append(found[1])
        return found


def make_flight(runner: Any, **calls: Any) -> StepPipeline[Any]:
    calls = {"commit": lambda _plan, _result: None, "fail": lambda _seq_id, _error: None, **calls}
    return StepPipeline(
        runner,
        calls.pop("pacer", None) or TowerPacer(),
        processors={},
        masks=calls.pop("masks", None) or StepMasks({}, vocab_size=1),
        hand_out=calls.pop("hand_out", None) or (lambda _: None),
        announce_forced_tokens=calls.pop("announce", None) or (lambda _seq_id, _num_tokens: None),
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


def test_each_row_that_cannot_be_computed_ends_its_sequence() -> None:
    runner, ended = Runner(), list[tuple[int, str]]()
    runner.refused = frozenset({1, 2, 4})
    flight = make_flight(runner, fail=lambda seq_id, error: ended.append((seq_id, str(error))))
    assert flight.launch(make_plan(1, 2, 3, 4), EmbeddingStore(0))
    assert ended == [(1, "refused"), (2, "refused"), (4, "refused")]


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_step_that_cannot_be_launched_is_lost_alone(in_flight: bool) -> None:
    """The one before it is committed, and hands out its tokens."""
    runner, done = Runner(), list[Any]()
    flight = make_flight(runner, commit=lambda plan, _: plan.rows[0].seq_id, hand_out=done.append)
    if in_flight:
        flight.launch(make_plan(1), EmbeddingStore(0))
    failing = ZeroDivisionError("odd")

    def fail(plan: StepPlan, embeddings: object) -> Any:
        raise failing

    runner.step = fail  # type: ignore[method-assign]
    with pytest.raises(StepFailedError, match="a step of 2 rows failed: odd") as failed:
        flight.launch(make_plan(2, 3), EmbeddingStore(0))
    assert failed.value.lost == (make_plan(2, 3),) == (failed.value.plan,) and failed.value.error is failing
    assert done == [1] * in_flight and flight.is_empty


def test_a_late_step_is_sampled_when_the_next_one_is_launched() -> None:
    """Until then its hidden states are another stage's to compute."""
    runner, committed = LateRunner(), list[StepPlan]()
    begun = runner.begun
    flight = make_flight(runner, commit=lambda plan, _: committed.append(plan))
    for number in range(3):
        flight.launch(make_plan(number), EmbeddingStore(0))
        assert [launched.is_sampled for launched in begun] == [True] * number + [False]
        assert committed == [make_plan(each) for each in range(number)]
    flight.collect()
    assert begun[-1].is_sampled and len(committed) == 3


class Watched(Runner):
    """A runner, and what makes the masks of its steps. done: what was done with which step. may_jump: whether rows may
    get several tokens. errors: of rows without a mask."""

    may_jump = False

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.errors: dict[int, RequestError] = {}
        self._number = 0

    def step(self, plan: StepPlan, embeddings: object) -> Any:
        found = super().step(plan, embeddings)
        self._number += 1
        self.done.append(("launched", self._number))
        return found

    def concerns(self, plan: StepPlan) -> bool:
        return bool(plan.rows)

    def take(self, plan: StepPlan, token_ids: object) -> None:
        self.done.append(("taken", plan.rows[0].seq_id))

    def begin(self, plan: StepPlan) -> Any:
        self.done.append(("begun", self._number))
        return SimpleNamespace(may_jump=self.may_jump, number=self._number)

    def finish(self, begun: Any, *, can_jump: bool) -> Any:
        self.done.append(("masks that may jump" if can_jump else "masks", begun.number))
        return None, self.errors

    def sample(self, launched: Launched, masks: object = None, *, processors: object) -> None:
        super().sample(launched, masks, processors=processors)
        self.done.append(("sampled", sum(what == "sampled" for what, _ in self.done) + 1))


def test_a_step_with_masks_is_sampled_before_the_next_one_is_launched() -> None:
    """Its masks are made while that is planned, so that the device has both one behind the other."""
    watched, committed = Watched(), list[StepPlan]()
    flight = make_flight(watched, masks=watched, commit=lambda plan, _: committed.append(plan))
    flight.launch(make_plan(1), EmbeddingStore(0))
    assert watched.done == [("launched", 1), ("begun", 1)]
    flight.prepare()
    flight.launch(make_plan(1), EmbeddingStore(0))
    assert watched.done[2:] == [("masks", 1), ("sampled", 1), ("launched", 2), ("taken", 1), ("begun", 2)]
    assert len(committed) == 1
    assert not flight.launch(StepPlan(), EmbeddingStore(0)), "a plan without rows comes behind its tokens, too"
    assert watched.done[7:] == [("masks", 2), ("sampled", 2), ("launched", 3)]
    flight.collect()
    assert len(committed) == 2 and flight.is_empty
    flight.launch(make_plan(1), EmbeddingStore(0))
    flight.collect()
    assert watched.done[-3:] == [("masks that may jump", 4), ("sampled", 3), ("taken", 1)] and len(committed) == 3


def test_masks_of_rows_that_may_jump_are_there_before_the_next_plan() -> None:
    watched = Watched()
    watched.may_jump = True
    flight = make_flight(watched, masks=watched)
    flight.launch(make_plan(1), EmbeddingStore(0))
    flight.prepare()
    assert watched.done[1:] == [("begun", 1), ("masks that may jump", 1)]
    flight.launch(make_plan(1), EmbeddingStore(0))
    assert watched.done[3:] == [("sampled", 1), ("launched", 2), ("taken", 1), ("begun", 2)]


def test_a_sequence_without_a_mask_ends_and_is_not_launched_again() -> None:
    watched, ended, committed = Watched(), list[int](), list[StepPlan]()
    watched.errors = dict.fromkeys((2, 3), RequestError(ErrorCode.INVALID_REQUEST, "too ambiguous"))
    flight = make_flight(
        watched,
        masks=watched,
        fail=lambda seq_id, _: ended.append(seq_id),
        commit=lambda plan, _: committed.append(plan),
    )
    flight.launch(make_plan(1, 2, 3), EmbeddingStore(0))
    assert not ended
    flight.launch(make_plan(1, 2, 3), EmbeddingStore(0))
    assert ended == [2, 3]
    flight.collect()
    assert committed == [make_plan(1, 2, 3), make_plan(1)]


def test_tokens_are_handed_out_when_the_masks_behind_them_have_been_begun() -> None:
    """Also where these cannot be begun: the tokens are committed."""
    watched = Watched()

    def commit(plan: StepPlan, _: StepResult) -> int:
        watched.done.append(("committed", plan.rows[0].seq_id))
        return plan.rows[0].seq_id

    flight = make_flight(
        watched, masks=watched, commit=commit, hand_out=lambda number: watched.done.append(("handed out", number))
    )
    flight.launch(make_plan(7), EmbeddingStore(0))
    flight.launch(make_plan(8), EmbeddingStore(0))
    assert watched.done[-4:] == [("taken", 7), ("committed", 7), ("begun", 2), ("handed out", 7)]

    def fail(plan: StepPlan) -> None:
        raise ZeroDivisionError

    watched.begin = fail  # type: ignore[method-assign]
    with pytest.raises(StepFailedError):
        flight.launch(make_plan(9), EmbeddingStore(0))
    assert watched.done[-2:] == [("committed", 8), ("handed out", 8)]


def test_a_step_that_cannot_be_sampled_takes_the_next_plan_with_it() -> None:
    watched = Watched()
    flight = make_flight(watched, masks=watched)
    flight.launch(make_plan(1), EmbeddingStore(0))
    failing = ZeroDivisionError()

    def fail(*_: object, **__: object) -> None:
        raise failing

    watched.sample = fail  # type: ignore[method-assign]
    with pytest.raises(StepFailedError) as failed:
        flight.launch(make_plan(2), EmbeddingStore(0))
    assert [plan.rows[0].seq_id for plan in failed.value.lost] == [1, 2] and flight.is_empty
    assert failed.value.__cause__ is failing and watched.done[-1] == ("masks", 1), "the next one is not launched"


def fail_with(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("when", ["prepare", "launch", "collect"])
def test_masks_that_cannot_be_finished_lose_their_step(when: str) -> None:
    watched, failing = Watched(), ZeroDivisionError("odd")
    watched.may_jump = True
    flight = make_flight(watched, masks=watched)
    flight.launch(make_plan(1), EmbeddingStore(0))
    watched.finish = fail_with(failing)  # type: ignore[method-assign]
    steps: dict[str, Callable[[], object]] = {
        "prepare": flight.prepare,
        "launch": lambda: flight.launch(make_plan(2), EmbeddingStore(0)),
        "collect": lambda: flight.collect(make_plan(3)),
    }
    with pytest.raises(StepFailedError) as failed:
        steps[when]()
    behind = {"prepare": [], "launch": [2], "collect": [3]}[when]
    assert [plan.rows[0].seq_id for plan in failed.value.lost] == [1, *behind]
    assert failed.value.error is failing and flight.is_empty


@pytest.mark.parametrize("part", ["collect", "begin"])
def test_a_late_step_that_fails_takes_those_behind_it_along(part: str) -> None:
    """It is sampled, and its masks are begun, with the next one or when it is collected."""
    watched, failing = Watched(), ZeroDivisionError("odd")
    watched.samples_late = True
    for go_on in ("launch", "collect"):
        flight = make_flight(watched, masks=watched)
        flight.launch(make_plan(1), EmbeddingStore(0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(watched, part, fail_with(failing))
            with pytest.raises(StepFailedError) as failed:
                if go_on == "launch":
                    flight.launch(make_plan(2), EmbeddingStore(0))
                else:
                    flight.collect(make_plan(2))
        assert [plan.rows[0].seq_id for plan in failed.value.lost] == [1, 2]
        assert failed.value.error is failing and flight.is_empty


def test_tokens_that_masks_force_are_announced() -> None:
    watched, announced = Watched(), list[tuple[int, int]]()
    watched.may_jump = True
    masks = SimpleNamespace(jumps={1: (5, 6), 3: (7,)})
    watched.finish = lambda begun, *, can_jump: (masks, {})  # type: ignore[method-assign]
    flight = make_flight(watched, masks=watched, announce=lambda *told: announced.append(told))
    flight.launch(make_plan(1, 2, 3), EmbeddingStore(0))
    for _ in range(2):
        flight.prepare()
    assert announced == [(1, 2), (3, 1)]
    flight.forget()
    flight.prepare()
    assert flight.is_empty and announced == [(1, 2), (3, 1)]


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
