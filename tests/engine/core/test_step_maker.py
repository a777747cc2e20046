"""Steps from their plan to what requests get of them, and how they go on behind one that fails.

The scheduler is a real one; the runner gives tokens that a test chooses. tests/engine/core/test_loop.py has models.
"""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seesay.device.tower_pacer import TowerPacer
from seesay.encoders.store import EmbeddingStore
from seesay.engine.core.grammars.step_masks import StepMasks
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import LiveRequests
from seesay.engine.core.request_ends import RequestEnds
from seesay.engine.core.step_counts import StepCounts
from seesay.engine.core.step_faults import EngineLostError
from seesay.engine.core.step_maker import StepMaker
from seesay.engine.token_messages import TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import RowResult, StepResult
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.values import MultimodalInput

REFUSED = RequestError(ErrorCode.INTERNAL, "not finite")
PROMPT = 6


class Launched:
    is_sampled = False

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan


class Stream:
    def record_event(self) -> str:
        return "event"

    def wait_event(self, event: str) -> None:
        """It is recorded already."""


class Runner:
    """Gives token 7 for each row, and all of its drafts. broken: sequences that no step may have. result: what the next
    steps give beside tokens. A step goes wrong when its results are asked for."""

    device, stream, samples_late = "cpu", Stream(), False

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []
        self.broken: set[int] = set()
        self.result: dict[str, Any] = {}

    def check_device(self) -> None:
        """It lives."""

    def step(self, plan: StepPlan, store: object) -> Any:
        assert isinstance(store, EmbeddingStore)
        self.plans.append(plan)
        return plan, Launched(plan) if plan.rows else None, {}

    def sample(self, launched: Launched, masks: object = None, *, processors: object) -> None:
        launched.is_sampled = True

    def collect(self, launched: Launched) -> StepResult:
        rows = launched.plan.rows
        if broken := self.broken & {row.seq_id for row in rows}:
            raise ValueError(f"broken by {min(broken)}")
        return StepResult(token_ids={row.seq_id: (*row.drafts, 7) for row in rows if row.samples}, **self.result)


class Watched(Scheduler):
    """Notes of what it is told."""

    def __init__(self) -> None:
        super().__init__(SchedulerConfig(max_batch_size=4, max_prefill_token_num=32, session_len=40), BlockPool(40, 4))
        self.seconds: list[float] = []
        self.unsafe: list[int] = []

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        self.seconds.append(seconds)
        super().observe_step(plan, seconds)

    def forget_blocks(self, seq_id: int) -> None:
        self.unsafe.append(seq_id)
        super().forget_blocks(seq_id)

    def take_released(self) -> Any:
        return ("released", *super().take_released())


class Proposing:
    """A `Speculation` that proposes `drafts` when it is wanted, and notes what it is told."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        self.drafts: dict[int, tuple[int, ...]] = {}
        self.wants = True

    def begin(self, seq: Any, *, is_ruled: bool = False) -> None:
        self.noted.append(("begin", seq.seq_id, is_ruled))

    def follow(self, seq_id: int, token_ids: Any) -> None:
        self.noted.append(("follow", seq_id, token_ids))

    def drop(self, seq_id: int) -> None:
        self.noted.append(("drop", seq_id))

    def clear(self) -> None:
        self.noted.append("clear")

    def is_wanted(self, num_rows: int) -> bool:
        self.noted.append(("wanted", num_rows))
        return self.wants

    def propose(self, num_rows: int) -> Any:
        self.noted.append(("propose", num_rows))
        return self.drafts

    def take(self, *names: str) -> list[Any]:
        """What was noted of some kinds since the last call."""
        noted, self.noted = self.noted, []
        return [each for each in noted if each[0] in names or each in names]


class Steps:
    """A step maker and all that it needs."""

    def __init__(self, *, is_ahead: bool = False, speculation: Any = None) -> None:
        self.runner, self.scheduler, self.requests = Runner(), Watched(), LiveRequests()
        self.counts, self.pacer = StepCounts(), TowerPacer()
        self.encoded: list[Any] = []
        self.released: list[Any] = []
        self.blamed: set[int] = set()
        self.num_reports = 0
        self.ends = RequestEnds(self.scheduler, self.requests, self._drop)
        embeddings: Any = SimpleNamespace(
            store=EmbeddingStore(0), start_encoding=self.encoded.append, release=self.released.append
        )
        reports: Any = SimpleNamespace(
            take=self._report, try_blame=lambda request, _: request.request_id in self.blamed
        )
        runner: Any = self.runner
        self.maker = StepMaker(
            runner,
            self.scheduler,
            embeddings=embeddings,
            requests=self.requests,
            ends=self.ends,
            masks=StepMasks({}, vocab_size=64),
            reports=reports,
            counts=self.counts,
            pacer=self.pacer,
            speculation=speculation,
            is_ahead=is_ahead,
        )

    def _drop(self, request_id: int) -> None:
        self.maker.drop(request_id)

    def _report(self) -> None:
        self.num_reports += 1

    def add(self, *request_ids: int, **params: Any) -> list[LiveRequest]:
        """Let requests begin, which get two tokens."""
        made = [make_live(request_id, **{"max_new_tokens": 2, **params}) for request_id in request_ids]
        for request in made:
            self.requests.add(request)
            self.scheduler.add(request.sequence)
            self.maker.begin(request)
        return made

    def make(self, times: int = 1) -> list[Any]:
        """Make steps, after each of which more may come. Returns the outputs."""
        for _ in range(times):
            assert self.maker.make()
        return self.outputs()

    def is_idle(self) -> bool:
        """Whether no step is in flight."""
        return self.maker.flight.is_empty

    def outputs(self) -> list[Any]:
        found = self.requests.take_outputs()
        return [(each.request_id, each.token_ids, each.finish_reason) for each in found]

    def rows(self) -> list[list[int]]:
        """The sequences of the steps that the runner got."""
        return [[row.seq_id for row in plan.rows] for plan in self.runner.plans if plan.rows]


def make_live(request_id: int, **params: Any) -> LiveRequest:
    token_ids = np.arange(PROMPT) + request_id
    prompt = MultimodalInput(token_ids=token_ids, positions=np.arange(PROMPT), next_position=PROMPT)
    return LiveRequest.make(TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams(**params)))


def test_a_step_is_committed_before_the_next_one() -> None:
    steps = Steps()
    [one, other] = steps.add(1, 2)
    other.sequence.params = SamplingParams(max_new_tokens=3)
    assert steps.make() == [(1, (7,), None), (2, (7,), None)] and steps.is_idle()
    assert one.computing_at is not None and one.first_token_at is not None
    assert one.computing_at <= one.first_token_at
    assert sorted(steps.make()) == [(1, (7,), "length"), (2, (7,), None)]
    assert steps.make() == [(2, (7,), "length")] and not steps.requests.by_id
    assert not steps.maker.make() and not steps.scheduler.has_work
    stats = steps.counts.stats()
    assert stats.step_sizes == ((1, 1), (2, 2)) and stats.total_step_tokens == 2 * PROMPT + 2 + 1
    assert steps.num_reports == 3, "reports are read with each commit"


def test_ahead_of_a_step_the_next_one_is_launched() -> None:
    steps = Steps(is_ahead=True)
    steps.add(1, max_new_tokens=3)
    assert steps.make() == [] and not steps.is_idle()
    assert steps.make() == [(1, (7,), None)] and len(steps.rows()) == 2
    steps.maker.finish()
    assert steps.outputs() == [(1, (7,), None)] and steps.is_idle()
    assert steps.make() == []
    assert steps.make() == [(1, (7,), "length")], "a plan without rows waits for the one before"
    assert not steps.maker.make()


def test_the_tower_rests_while_there_is_nothing_to_compute() -> None:
    steps = Steps()
    steps.add(1)
    rested: list[bool] = []
    steps.pacer.rest = lambda: rested.append(True)  # type: ignore[method-assign]
    steps.make(2)
    assert not rested
    assert not steps.maker.make() and rested == [True]


def test_what_the_plan_says_of_embeddings_is_done() -> None:
    steps = Steps()
    steps.add(1)
    steps.make()
    assert steps.encoded == [()] and steps.released == [("released",)]


def test_steps_that_have_a_duration_are_observed() -> None:
    steps = Steps()
    steps.add(1, max_new_tokens=3)
    steps.make()
    assert steps.scheduler.seconds == []
    steps.runner.result = {"seconds": 0.25}
    steps.make()
    assert steps.scheduler.seconds == [0.25]


def test_what_rows_give_beside_tokens_goes_to_their_requests() -> None:
    steps = Steps()
    steps.add(1, 2)
    steps.runner.result = {"rows": (RowResult(seq_id=2, start=0, logprobs=({7: -0.5},)),)}
    steps.maker.make()
    found = {each.request_id: each.logprobs for each in steps.requests.take_outputs()}
    assert found == {1: None, 2: ({7: -0.5},)}


def test_rows_with_errors_end_and_the_others_go_on() -> None:
    steps = Steps()
    steps.add(1, 2, 3)
    steps.runner.result = {"errors": {1: REFUSED, 2: REFUSED, 9: REFUSED}, "not_finite": frozenset({2, 9})}
    outputs = steps.make()
    assert sorted(outputs) == [(1, (), "error"), (2, (), "error"), (3, (7,), None)]
    assert steps.counts.stats().total_not_finite == 1 and steps.scheduler.unsafe == [2], "9 is not there"
    assert list(steps.requests.by_id) == [3] and list(steps.scheduler.sequences) == [3]


# --- speculation ------------------------------------------------------------------------------------------------------


def test_proposed_tokens_are_planned_and_committed_at_once() -> None:
    proposing = Proposing()
    steps = Steps(is_ahead=True, speculation=proposing)
    steps.add(1, max_new_tokens=9)
    proposing.wants = False
    steps.make()
    assert proposing.take("wanted", "propose") == [("wanted", 0)] and not steps.is_idle()
    proposing.wants, proposing.drafts = True, {1: (3, 4)}
    assert steps.make() == [(1, (7,), None), (1, (3, 4, 7), None)]
    assert proposing.take("wanted", "propose", "follow") == [
        ("wanted", 1), ("follow", 1, (7,)), ("propose", 1), ("follow", 1, (3, 4, 7)),
    ]  # fmt: skip
    assert steps.is_idle() and steps.runner.plans[-1].rows[0].drafts == (3, 4)
    proposing.drafts = {}
    steps.make()
    assert not steps.is_idle(), "without proposals the next one is launched ahead"


def test_requests_are_announced_with_their_rules_and_dropped() -> None:
    proposing = Proposing()
    steps = Steps(speculation=proposing)
    plain, ruled, thinking = (make_live(number) for number in (1, 2, 3))
    ruled.grammar, thinking.thought = SimpleNamespace(), SimpleNamespace()  # type: ignore[assignment]
    for request in (plain, ruled, thinking):
        steps.maker.begin(request)
    assert proposing.take("begin") == [("begin", 1, False), ("begin", 2, True), ("begin", 3, True)]
    steps.maker.drop(2)
    assert proposing.take("drop") == [("drop", 2)]
    steps = Steps()
    steps.maker.begin(plain)
    steps.maker.drop(1)


def test_rows_that_are_tried_again_propose_nothing() -> None:
    proposing = Proposing()
    steps = Steps(speculation=proposing)
    steps.add(1, 2)
    steps.runner.broken = {2}
    steps.make()
    proposing.take()
    assert steps.maker.suspects.group is not None
    steps.make()
    assert proposing.take("wanted", "propose") == []


def test_a_step_that_fails_before_tokens_are_proposed_is_tried_again_without() -> None:
    proposing = Proposing()
    proposing.drafts = {1: (3,)}
    steps = Steps(is_ahead=True, speculation=proposing)
    steps.add(1, 2, max_new_tokens=9)
    proposing.wants = False
    steps.make()
    proposing.wants, steps.runner.broken = True, {2}
    proposing.take()
    steps.make()
    assert proposing.take("propose") == [] and steps.maker.suspects.group is not None
    assert all(not row.drafts for plan in steps.runner.plans for row in plan.rows)


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ahead", [False, True])
def test_the_row_that_fails_ends_alone(is_ahead: bool, caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(is_ahead=is_ahead)
    steps.add(1, 2, 3)
    steps.runner.broken = {2}
    outputs = list[Any]()
    for _ in range(20):
        if not steps.maker.make():
            break
        outputs += steps.outputs()
    assert {each[0]: each[2] for each in outputs if each[2]} == {1: "length", 2: "error", 3: "length"}
    assert [2] in steps.rows() and not steps.scheduler.has_work and steps.maker.suspects.group is None
    assert "a step of 3 rows failed: broken by 2; its rows are computed again" in caplog.text


def test_rows_that_are_tried_are_committed_at_once() -> None:
    steps = Steps(is_ahead=True)
    steps.add(1, 2)
    steps.runner.broken = {2}
    steps.make(2)
    group = steps.maker.suspects.group
    assert group == frozenset({1}) and steps.is_idle()
    assert steps.make() == [(1, (7,), None)] and steps.rows()[-1] == [1] and steps.is_idle()
    assert steps.maker.suspects.group == frozenset({2}), "the other half comes next"


def test_a_failure_while_the_flight_is_finished_is_recovered_from() -> None:
    steps = Steps(is_ahead=True)
    steps.add(1)
    steps.make()
    steps.runner.broken = {1}
    steps.maker.finish()
    assert steps.outputs() == [(1, (), "error")] and steps.is_idle()


def test_the_row_of_a_request_that_has_ended_may_fail() -> None:
    steps = Steps(is_ahead=True)
    steps.add(1)
    steps.make()
    steps.ends.end(1, "abort")
    steps.runner.broken = {1}
    steps.maker.finish()
    assert steps.outputs() == [(1, (), "abort")] and steps.is_idle()


def test_the_tower_may_be_to_blame() -> None:
    """Its report ends the request then."""
    steps = Steps()
    steps.add(1, 2)
    steps.blamed = {1}
    steps.runner.broken = {1, 2}
    for _ in range(3):
        steps.maker.make()
    assert steps.outputs() == [(2, (), "error")] and 1 in steps.requests.by_id


def test_a_loop_that_begins_anew_knows_nothing() -> None:
    proposing = Proposing()
    proposing.wants = False
    steps = Steps(is_ahead=True, speculation=proposing)
    steps.add(1, 2)
    steps.make()
    steps.maker.suspects.split([1, 2])
    steps.maker.begin_anew()
    assert steps.is_idle() and steps.maker.suspects.group is None and not steps.scheduler.sequences
    assert proposing.take("clear") == ["clear"]
    for _ in range(2):
        steps.maker.begin_anew()
    with pytest.raises(EngineLostError, match="again and again"):
        steps.maker.begin_anew()
    Steps().maker.begin_anew()


def test_a_closed_one_keeps_no_model() -> None:
    steps = Steps(speculation=Proposing())
    maker, runner = steps.maker, weakref.ref(steps.runner)
    del steps.runner
    maker.close()
    assert maker.speculation is None and runner() is None
