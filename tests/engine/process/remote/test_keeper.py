"""The thread that keeps a process: when it starts one, hears it, gives it up, starts another, and ends.

A test writes down what the processes do, one after the other; the thread runs through that, and nothing waits. Where no
process is left, the keeper gives up, and is closed when it waits for nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scripted_process import FACTS, NO_NEWS, QUIET, ScriptedChild, ScriptedOrigin

from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds
from seesay.engine.process.failures import HungError, describe_failure
from seesay.engine.process.remote.keeper import CLOSE_S, POLL_S, ProcessKeeper
from seesay.engine.process.remote.message_taker import MessageTaker
from seesay.engine.process.remote.request_sender import RequestSender
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.engine.watchdog import ENGINE, Fault
from seesay.errors import CheckpointError, ErrorCode
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import EngineStats, MultimodalInput

AWAKE = ModelStatus()
STARTED = kinds.Started(FACTS, AWAKE)
TOKENS = kinds.Beat({}, kinds.News((), (), EngineStats(total_step_tokens=1)))
LAST_WORDS_S = 0.2


class ScriptedWaker:
    """A `Waker` whose waits end at once. idle: what happens each time when the thread waits for nothing but a wake-up;
    then the keeper is closed. waits: how long it waits otherwise; such a wait takes as long as `passes` says, or all
    that time."""

    def __init__(self, kept: Kept) -> None:
        self.idle: deque[Callable[[], object]] = deque()
        self.passes: deque[float] = deque()
        self.waits: list[float] = []
        self.before_wait: Callable[[], object] = lambda: None
        self.num_taken = self.num_closed = 0
        self._kept = kept

    def take(self) -> None:
        self.num_taken += 1

    def fileno(self) -> int:
        return 77

    def wait(self, timeout_s: float | None = None) -> None:
        if timeout_s is None:
            self.idle.popleft()() if self.idle else self._kept.close()
        else:
            self.before_wait()
            self.waits.append(timeout_s)
            self._kept.now_s += self.passes.popleft() if self.passes else timeout_s

    def close(self) -> None:
        self.num_closed += 1


class Kept:
    """A keeper, its clock and its waker, and the requests of a listener."""

    def __init__(self, *, is_owner: bool = True, step_timeout_s: float | None = None) -> None:
        self.now_s = 100.0
        self.origin = ScriptedOrigin(is_owner=is_owner)
        self.state: Any = ProcessState(self.origin)
        anything: Any = self
        self.sender = RequestSender(self.state, anything)
        self.requests = self.sender.requests
        self.requests.listener = anything
        self.taker = MessageTaker(self.state, self.origin, self.sender, anything, step_timeout_s=step_timeout_s)
        self.keeper: Any = None
        self.outputs: list[TokenOutput] = []
        self.idle: deque[Callable[[], object]] = deque()
        self.passes: deque[float] = deque()
        self.waits: list[float] = []
        self.waker = ScriptedWaker(self)
        self._step_timeout_s = step_timeout_s

    def run(self, *opens: Any) -> None:
        """Let the thread do all."""
        begin = threading.Event()

        def start(found: Any) -> Any:
            begin.wait(60)
            return found

        self.origin.opens.extend(opens)
        opening = self.origin.open
        self.origin.open = lambda: start(None) or opening()  # type: ignore[method-assign]
        for child in opens:
            if isinstance(child, ScriptedChild):
                child.on_wait = self.pass_time
        waker: Any = self.waker
        self.keeper = ProcessKeeper(
            self.state,
            self.origin,
            waker,
            self.sender,
            self.taker,
            step_timeout_s=self._step_timeout_s,
            clock=lambda: self.now_s,
        )
        begin.set()
        self.keeper.thread.join(10)
        assert not self.keeper.thread.is_alive(), "it does not end"

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def close(self) -> None:
        self.keeper.is_closing = True

    def add(self, *request_ids: int) -> None:
        """Requests come, and are sent if there is a process."""
        prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
        for number in request_ids:
            request = TokenRequest(request_id=number, prompt=prompt, params=SamplingParams())
            self.sender.send(self.requests.ledger.add(request))

    def ends(self) -> list[tuple[int, str]]:
        """Requests that have ended, and how."""
        return [(each.request_id, f"{each.error}") for each in self.outputs]

    def on_outputs(self, outputs: Any) -> None:
        self.outputs.extend(outputs)

    def on_encoding(self, item_hash: bytes) -> None:
        """Nobody asks."""

    def wake(self) -> None:
        """The thread does not wait."""


@pytest.fixture
def kept() -> Kept:
    return Kept()


def write_all(child: ScriptedChild) -> None:
    """The link writes what was sent."""
    for done in child.dones:
        if done is not None:
            done(None)


def test_a_process_that_dies_is_followed_by_another(kept: Kept) -> None:
    """Requests that a process had end with an error before the next process is up; those that waited go to that one."""
    seen: list[Any] = []

    def ask() -> None:
        kept.add(1)
        write_all(first)
        kept.add(2)

    first = ScriptedChild(kinds.Hello(), STARTED, ask, ends="signal 9")
    second = ScriptedChild(STARTED, TOKENS, lambda: seen.append(kept.ends()), kept.close, QUIET)
    kept.run(first, second)
    lost = "the engine process died (signal 9); the engine is started again; send the request again"
    assert seen == [[(1, lost)]] and kept.ends()[:1] == [(1, lost)]
    assert first.sent[0] == ("hello", AWAKE)
    assert [type(each) for each in second.sent] == [kinds.Submit, kinds.Stop]
    assert second.sent[0].request.request_id == 2
    assert (first.num_ended, second.num_ended, kept.origin.num_opened) == (1, 1, 2)
    assert kept.state.num_restarts == 1 and kept.state.failure is None and kept.state.is_over


def test_what_is_left_when_it_is_closed_ends_with_an_error(kept: Kept) -> None:
    child = ScriptedChild(STARTED, lambda: kept.add(1, 2), kept.close)
    kept.run(child)
    closed = "the engine was closed before the answer was complete"
    assert kept.ends() == [(1, closed), (2, closed)]
    assert {each.error.code for each in kept.outputs if each.error is not None} == {ErrorCode.CLOSED}
    assert {each.finish_reason for each in kept.outputs} == {"error"}
    assert kept.state.is_over and kept.state.num_restarts == 0 and child.num_ended == 1
    assert kept.waker.num_closed == 1


def test_a_lost_process_leaves_no_embeddings_and_no_counts(kept: Kept) -> None:
    stats = EngineStats(total_step_tokens=1)
    seen: list[Any] = []

    def look() -> None:
        seen.append((set(kept.requests.ledger.embeddings.encoded), kept.taker.stats))

    first = ScriptedChild(STARTED, kinds.Beat({}, kinds.News((b"a",), (), stats)), look)
    kept.run(first, ScriptedChild(look, kept.close))
    assert seen == [({b"a"}, stats), (set(), EngineStats())]


def test_the_error_of_the_first_start_is_the_failure(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """It is raised to the caller, and not logged."""
    kept.waker.idle.append(lambda: kept.add(1))
    kept.run(ScriptedChild(kinds.Hello(), describe_failure(CheckpointError("no weights")), QUIET))
    assert type(kept.state.failure) is CheckpointError and str(kept.state.failure) == "no weights"
    assert kept.origin.num_opened == 1 and not caplog.records
    assert kept.ends() == [(1, "the engine was closed before the answer was complete")]


def test_a_first_process_that_the_system_refuses_is_a_failure(kept: Kept) -> None:
    error = BlockingIOError("no processes left")
    kept.run(error)
    assert kept.state.failure is error and kept.waker.waits == [] and kept.state.num_restarts == 1


def test_an_engine_that_is_given_up_ends_all_requests(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    def ask() -> None:
        kept.add(1)
        write_all(last)
        kept.add(2)

    last = ScriptedChild(STARTED, ask)
    with caplog.at_level(logging.ERROR, "seesay"):
        kept.run(ScriptedChild(STARTED), ScriptedChild(STARTED), last)
    reason = str(kept.state.failure)
    assert "ended 3 times" in reason and kept.state.num_restarts == 3
    assert kept.ends() == [(number, f"{reason}; send the request again") for number in (1, 2)]
    assert [record.getMessage() for record in caplog.records] == [
        *["the engine process died (status 3); the engine is started again"] * 2,
        reason,
    ]


def test_what_comes_after_a_failure_is_handed_out(kept: Kept) -> None:
    seen: list[Any] = []

    def ask() -> None:
        kept.add(1)
        kept.requests.end(1, "abort")

    kept.waker.idle.append(ask)
    kept.waker.idle.append(lambda: seen.append([each.finish_reason for each in kept.outputs]))
    kept.run(ValueError("broken"))
    assert seen == [["abort"]]


def test_a_process_that_the_system_refuses_is_tried_later_and_later(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    refused = OSError("no descriptors left")
    faults: list[Any] = []
    kept.run(
        ScriptedChild(STARTED, TOKENS),
        *[refused] * 8,
        ScriptedChild(lambda: faults.append(kept.state.fault), STARTED, TOKENS),
        refused,
        ScriptedChild(kept.close),
    )
    assert kept.waker.waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.2])
    reason = "the engine process cannot be started (no descriptors left); it is tried again"
    assert faults == [Fault(ENGINE, reason)] and kept.state.num_restarts == 2
    assert "cannot be started: no descriptors left; trying again in 0.4 s" in caplog.text


def test_requests_that_end_meanwhile_are_handed_out(kept: Kept) -> None:
    """A wake-up does not shorten the wait before the system is asked again."""
    kept.waker.passes.extend([0.05, 0.05])
    seen: list[int] = []

    def look() -> None:
        seen.append(len(kept.outputs))
        if len(seen) == 1:
            kept.add(1)
            kept.requests.end(1, "abort")

    kept.waker.before_wait = look
    kept.run(ScriptedChild(STARTED), OSError("full"), ScriptedChild(kept.close))
    assert kept.waker.waits == pytest.approx([0.2, 0.15, 0.1]) and seen == [0, 1, 1]


def test_closing_ends_the_wait_for_the_system(kept: Kept) -> None:
    kept.waker.passes.append(0.0)
    kept.waker.before_wait = kept.close
    kept.run(ScriptedChild(STARTED), OSError("full"))
    assert len(kept.waker.waits) == 1 and kept.origin.num_opened == 2


@pytest.mark.parametrize("error", [ConnectionRefusedError("nobody listens"), ValueError("a bug")])
def test_another_failure_of_a_start_counts_as_an_end(kept: Kept, error: Exception) -> None:
    kept.run(ScriptedChild(STARTED), error, error)
    assert kept.waker.waits == [] and str(error) in str(kept.state.failure) and kept.state.num_restarts == 3


def test_one_that_died_asleep_is_not_started_until_it_wakes_up(kept: Kept) -> None:
    asleep = ModelStatus(asleep=("weights",), level=1)
    seen: list[Any] = []

    def ask() -> None:
        kept.requests.ledger.add(request)
        seen.append(kept.origin.num_opened)

    def wake_up() -> None:
        seen.append(kept.ends())
        kept.state.status = AWAKE

    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
    request = TokenRequest(request_id=1, prompt=prompt, params=SamplingParams())
    kept.waker.idle.extend([ask, wake_up])
    kept.run(ScriptedChild(kinds.Started(FACTS, asleep)), ScriptedChild(kept.close))
    assert seen[0] == 1 and kept.origin.num_opened == 2
    [(number, text)] = seen[1]
    assert number == 1 and "the engine sleeps" in text


@pytest.mark.parametrize("is_owner", [True, False])
def test_requests_of_another_frontend_do_not_wait_for_an_engine_that_sleeps(is_owner: bool) -> None:
    """It waits for messages of a process that has not begun. The owner's requests wait."""
    kept = Kept(is_owner=is_owner)
    kept.origin.known = ModelStatus(asleep=("weights",), level=1)
    seen: list[Any] = []
    child = ScriptedChild(lambda: kept.add(1), QUIET, lambda: seen.append(len(kept.outputs)), kept.close)
    kept.run(child)
    assert seen == [0 if is_owner else 1]


def test_a_frontend_that_is_connected_refuses_nothing() -> None:
    """The process does."""
    kept = Kept(is_owner=False)
    kept.origin.known = asleep = ModelStatus(asleep=("weights",), level=1)
    seen: list[Any] = []

    def wait_here() -> None:
        entry = kept.requests.ledger.find(1)
        assert entry is not None
        kept.requests.ledger.take_back(entry)

    script = [
        kinds.Started(FACTS, asleep),
        lambda: kept.add(1),
        wait_here,
        QUIET,
        lambda: seen.append(len(kept.outputs)),
        kept.close,
    ]
    kept.run(ScriptedChild(*script))
    assert seen == [0]


def test_it_waits_for_messages_and_for_its_waker(kept: Kept) -> None:
    child = ScriptedChild(STARTED, QUIET, QUIET, kept.close)
    kept.run(child)
    assert set(child.waits[:4]) == {(POLL_S, (77,))} and kept.waker.num_taken == 3


def test_ends_are_handed_out_between_messages(kept: Kept) -> None:
    seen: list[int] = []

    def end() -> None:
        kept.add(1)
        kept.requests.end(1, "abort")

    kept.run(ScriptedChild(STARTED, end, lambda: seen.append(len(kept.outputs)), kept.close))
    assert seen == [1]


def test_messages_that_cannot_be_read_end_the_process(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    taking: list[Any] = []
    first = ScriptedChild(STARTED, ValueError("what is this"), QUIET)
    first.end = lambda timeout_s=0.0: taking.append(kept.state.child)  # type: ignore[method-assign]
    kept.run(first, ScriptedChild(lambda: taking.append(kept.state.fault), kept.close))
    assert taking == [None, Fault(ENGINE, "what is this; the engine is started again")]
    assert "the messages of the engine process cannot be read" in caplog.text


def test_the_last_words_of_a_dead_process_are_heard(kept: Kept) -> None:
    def die() -> None:
        first.has_ended = True

    first = ScriptedChild(STARTED, die, kinds.StatusChanged(ModelStatus(epoch=5)), ends="signal 9")
    seen: list[Any] = []
    kept.run(first, ScriptedChild(lambda: seen.append((kept.state.status.epoch, kept.state.fault.reason)), kept.close))
    assert seen == [(5, "the engine process died (signal 9); the engine is started again")]
    assert LAST_WORDS_S in first.link.waits


def test_what_a_process_says_of_its_end_is_the_reason(kept: Kept) -> None:
    """For example that it hangs; it is ended then."""
    child = ScriptedChild(STARTED, kinds.Beat({ENGINE: 1e9}, NO_NEWS), QUIET, QUIET)
    seen: list[Any] = []
    kept.run(child, ScriptedChild(lambda: seen.append(kept.state.fault.reason), kept.close))
    assert "a step of the engine hangs" in seen[0] and len(child.script) == 2 and child.num_ended == 1


@pytest.mark.parametrize(("is_owner", "limit_s"), [(True, 10.0), (False, 15.0)])
def test_a_silent_process_is_killed(is_owner: bool, limit_s: float) -> None:
    """It is heard whenever it says something."""
    kept = Kept(is_owner=is_owner, step_timeout_s=8.0)
    ended: list[float] = []
    begun: list[float] = []
    silence = [QUIET] * 18
    child = ScriptedChild(STARTED, *silence, TOKENS, lambda: begun.append(kept.now_s), ends=None)
    child.end = lambda timeout_s=0.0: ended.append(kept.now_s)  # type: ignore[method-assign]
    seen: list[Any] = []
    kept.run(child, ScriptedChild(lambda: seen.append(kept.state.fault.reason), kept.close))
    assert ended[0] - begun[0] == limit_s + POLL_S and "it has said nothing for" in seen[0]


class Deaf:
    """A process that takes requests until its link breaks."""

    def __init__(self, kept: Kept, *then: Any, ends: str | None, has_ended: bool = False) -> None:
        self.kept = kept
        self.error: Any = None
        self.has_ended = has_ended
        self.child = ScriptedChild(STARTED, self._break, *then, ends=ends)

    def _break(self) -> None:
        self.child.is_broken = True
        self.child.has_ended = self.has_ended

    def run(self) -> str:
        seen: list[Any] = []
        kept = self.kept
        kept.run(self.child, ScriptedChild(lambda: seen.append((kept.state.deaf, kept.state.fault)), kept.close))
        [(deaf, fault)] = seen
        assert deaf is None
        return str(fault.reason)


def test_a_process_to_which_nothing_can_be_sent_is_ended(kept: Kept) -> None:
    deaf = Deaf(kept, ends=None)
    reason = str(HungError(Fault(ENGINE, "it takes no messages")))
    assert deaf.run() == f"{reason}; the engine is started again"
    assert deaf.child.link.waits == [LAST_WORDS_S] and deaf.child.num_ended == 1


def test_one_that_died_has_its_last_words(kept: Kept) -> None:
    deaf = Deaf(kept, kinds.StatusChanged(ModelStatus(epoch=6)), TOKENS, ends="status 7", has_ended=True)
    assert deaf.run() == "the engine process died (status 7); the engine is started again"
    assert kept.taker.stats == EngineStats() and not deaf.child.script and kept.state.status.epoch == 6
    assert deaf.child.link.waits == [LAST_WORDS_S] * 3


def test_its_last_words_may_be_the_reason(kept: Kept) -> None:
    deaf = Deaf(kept, describe_failure(MemoryError("full")), TOKENS, ends="status 7", has_ended=True)
    assert deaf.run() == "full; the engine is started again" and len(deaf.child.script) == 1


def test_one_that_lives_and_talks_is_not_heard_for_ever(kept: Kept) -> None:
    def talk(child: ScriptedChild) -> Callable[[], Any]:
        receive = child.link.receive

        def take() -> Any:
            kept.now_s += 0.09
            return receive()

        return take

    deaf = Deaf(kept, *[TOKENS] * 9, ends=None)
    deaf.child.link.receive = talk(deaf.child)
    assert "it takes no messages" in deaf.run()
    assert len(deaf.child.script) == 6, "three messages take longer than that"


def test_a_message_that_cannot_be_sent_makes_a_process_deaf(kept: Kept) -> None:
    """Found by the thread that sends, before this one."""
    child: Any = ScriptedChild(STARTED, lambda: kept.state.note_deaf(child), ends=None)
    seen: list[Any] = []
    kept.run(child, ScriptedChild(lambda: seen.append(kept.state.fault.reason), kept.close))
    assert "it takes no messages" in seen[0]


def test_a_process_is_asked_to_end_and_heard_meanwhile(kept: Kept) -> None:
    child = ScriptedChild(STARTED, kept.close, QUIET, kinds.StatusChanged(ModelStatus(epoch=5)), QUIET)
    kept.run(child)
    assert child.sent == [kinds.Stop()] and kept.state.status.epoch == 5 and not child.script
    assert child.num_ended == 1 and kept.now_s < 100 + CLOSE_S / 2
    assert next(wait for wait in child.waits if not wait[1]) == (POLL_S, ())


def test_last_words_are_heard_when_it_is_closed_too(kept: Kept) -> None:
    def die() -> None:
        child.has_ended = True

    child = ScriptedChild(STARTED, kept.close, die, kinds.StatusChanged(ModelStatus(epoch=5)))
    kept.run(child)
    assert kept.state.status.epoch == 5 and child.link.waits == [LAST_WORDS_S] * 2


def test_a_process_that_does_not_end_is_waited_for_no_longer(kept: Kept) -> None:
    child = ScriptedChild(STARTED, kept.close, ends=None)
    kept.run(child)
    assert kept.now_s == 100 + CLOSE_S and child.num_ended == 1


def test_one_that_loads_is_not_asked(kept: Kept) -> None:
    child = ScriptedChild(kinds.Hello(), kept.close, QUIET, STARTED, ends=None)
    kept.run(child)
    assert child.sent == [("hello", AWAKE)] and kept.now_s == 100 and child.num_ended == 1
    assert kept.state.facts is None
