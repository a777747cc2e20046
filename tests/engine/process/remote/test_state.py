"""What a frontend knows of its engine process: whether it takes requests, sleeps, has died, is started again."""

from __future__ import annotations

import threading
from typing import Any

from scripted_process import FACTS, ScriptedChild, ScriptedOrigin

from seesay.engine.commands import ModelStatus
from seesay.engine.process.failures import HungError
from seesay.engine.process.remote.state import MAX_DEATHS, ProcessState
from seesay.engine.watchdog import ENCODER, ENGINE, Fault
from seesay.errors import CheckpointError, ErrorCode

AWAKE = ModelStatus(folders=("first",))
ASLEEP = ModelStatus(asleep=("kv_cache",), level=1)
DIED = RuntimeError("it died")
STARTING = Fault(ENGINE, "the engine process is being started")


class Changes(threading.Condition):
    """Counts how often those who wait are notified."""

    def __init__(self) -> None:
        super().__init__()
        self.num_notified = 0

    def notify_all(self) -> None:
        super().notify_all()
        self.num_notified += 1


class Parts:
    """A state, and two processes for it."""

    def __init__(self, *, is_owner: bool = True) -> None:
        self.origin = ScriptedOrigin(is_owner=is_owner)
        self.state: Any = ProcessState(self.origin)
        self.changes = self.state.changed = Changes()
        children: Any = ScriptedChild(), ScriptedChild()
        self.first, self.second = children

    def start(self, status: ModelStatus = AWAKE) -> None:
        self.state.note_start(self.first, FACTS, status)

    def die(self, error: Exception = DIED) -> str:
        return str(self.state.note_end(error))


def test_it_begins_with_a_process_that_is_being_started() -> None:
    state = Parts().state
    assert state.child is None and state.deaf is None and state.facts is None and state.failure is None
    assert state.fault == STARTING and state.silence is None and state.num_restarts == 0
    assert state.find_refusal() is None and not state.sleeps_without_process and state.is_over is False


def test_a_process_that_takes_requests_is_at_no_fault() -> None:
    parts = Parts()
    parts.state.silence = STARTING
    parts.start()
    state = parts.state
    assert (state.child, state.facts, state.status) == (parts.first, FACTS, AWAKE)
    assert state.fault is None and state.silence is None and parts.changes.num_notified == 1
    assert state.find_refusal() is None


def test_a_process_that_cannot_be_told_anything_takes_no_requests() -> None:
    parts = Parts()
    parts.start()
    state = parts.state
    assert not state.note_deaf(parts.second) and state.child is parts.first and state.deaf is None, "it is another one"
    assert state.note_deaf(parts.first) and state.child is None and state.deaf is parts.first
    assert state.note_deaf(parts.first), "it is known already"
    state.note_start(parts.second, FACTS, AWAKE)
    state.deaf = None
    assert not state.note_deaf(parts.first) and state.child is parts.second, "the next one takes requests already"


def test_a_process_that_cannot_be_started_the_first_time_fails_for_its_reason() -> None:
    parts = Parts()
    error = CheckpointError("folder: there are no weights")
    assert parts.die(error) == str(error)
    assert parts.state.failure is error and parts.state.fault == Fault(ENGINE, str(error))
    refusal = parts.state.find_refusal()
    assert refusal is not None and refusal.code is ErrorCode.INTERNAL and str(error) in str(refusal)
    assert parts.changes.num_notified == 1


def test_a_process_that_dies_is_started_again() -> None:
    parts = Parts()
    parts.start()
    parts.state.note_deaf(parts.first)
    parts.state.silence = STARTING
    reason = parts.die()
    assert reason == "it died; the engine is started again"
    state = parts.state
    assert state.child is None and state.deaf is None and state.silence is None and state.failure is None
    assert state.fault == Fault(ENGINE, reason) and state.num_restarts == 1 and parts.changes.num_notified == 2
    assert state.find_refusal() is None and state.facts is FACTS, "requests wait for the next one"


def test_the_part_that_hangs_is_at_fault() -> None:
    parts = Parts()
    parts.start()
    reason = parts.die(HungError(Fault(ENCODER, "a call hangs")))
    assert parts.state.fault == Fault(ENCODER, reason) and reason.startswith("the engine process was killed (a call ")


def test_a_process_that_dies_again_and_again_is_given_up() -> None:
    assert MAX_DEATHS == 3
    parts = Parts()
    for number in range(1, 3):
        parts.start()
        assert parts.die() == "it died; the engine is started again" and parts.state.num_restarts == number
    parts.start()
    reason = parts.die()
    assert reason == (
        "it died; the engine ended 3 times without an answer in between and is not started again: see its log"
    )
    assert str(parts.state.failure) == reason and parts.state.fault == Fault(ENGINE, reason)
    refusal = parts.state.find_refusal()
    assert refusal is not None and str(refusal).startswith(reason)


def test_a_token_in_between_counts_from_the_beginning() -> None:
    parts = Parts()
    for _ in range(2):
        parts.start()
        parts.die()
    parts.start()
    parts.state.note_tokens()
    for number in (3, 4):
        parts.die()
        assert parts.state.failure is None and parts.state.num_restarts == number
    parts.die()
    assert parts.state.failure is not None


def test_one_that_died_asleep_is_started_when_it_wakes_up() -> None:
    parts = Parts()
    assert not parts.state.sleeps_without_process
    parts.state.status = ASLEEP
    assert not parts.state.sleeps_without_process, "none was ever loaded"
    parts.start(ASLEEP)
    assert not parts.state.sleeps_without_process and parts.state.find_refusal() is None, "the process says that"
    reason = parts.die()
    assert reason == "it died; the engine is started again by wake_up()" and parts.state.sleeps_without_process
    refusal = parts.state.find_refusal()
    assert refusal is not None and refusal.code is ErrorCode.SLEEPING and "kv_cache" in str(refusal)
    parts.state.status = AWAKE
    assert not parts.state.sleeps_without_process and parts.state.find_refusal() is None


def test_another_frontend_does_not_sleep_without_a_process() -> None:
    """Its owner starts it."""
    parts = Parts(is_owner=False)
    parts.start(ASLEEP)
    parts.die()
    assert not parts.state.sleeps_without_process


def test_the_owner_is_asked_for_the_status_where_it_may_be_another() -> None:
    parts = Parts(is_owner=False)
    assert parts.state.confirm_status() == ModelStatus(), "the owner does not answer"
    parts.origin.known = ModelStatus(epoch=7)
    assert parts.state.confirm_status().epoch == 7
    parts.start()
    assert parts.state.confirm_status() == AWAKE, "what the process has told"
    parts.state.status = ASLEEP
    assert parts.state.confirm_status().epoch == 7, "it may have been woken up"
    parts.origin.known = None
    assert parts.state.confirm_status() == ASLEEP


def test_a_refused_start_is_a_fault_and_no_failure() -> None:
    parts = Parts()
    parts.start()
    parts.die()
    parts.state.note_no_start(OSError("no processes left"))
    reason = "the engine process cannot be started (no processes left); it is tried again"
    assert parts.state.fault == Fault(ENGINE, reason)
    assert parts.state.failure is None and parts.state.num_restarts == 1


def test_a_closed_core_has_no_process() -> None:
    parts = Parts()
    parts.start()
    parts.state.note_close()
    assert parts.state.child is None and parts.state.is_over and parts.changes.num_notified == 2
