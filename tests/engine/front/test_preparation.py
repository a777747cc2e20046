"""The way of requests from the caller through the threads that prepare them to the core, and how they end before it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

from seesay.config import GenerationConfig
from seesay.engine.commands import ModelStatus
from seesay.engine.front.media_room import MediaRoom
from seesay.engine.front.preparation import Preparation
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.errors import ErrorCode, RequestError
from seesay.system.cancellation import Cancellation
from seesay.values import GenerationRequest, MediaPart, Modality, OutputDelta

TEXT = GenerationRequest(prompt="hi", gen_config=GenerationConfig())
PICTURE = replace(TEXT, media=(MediaPart(modality=Modality.IMAGE, source=b"picture"),))
FETCHED = replace(TEXT, media=(MediaPart(modality=Modality.IMAGE, source="https://a/b.png"),))
ERROR = RequestError(ErrorCode.INVALID_REQUEST, "no")


class ScriptedCore:
    """Notes what it is asked for. `fails` is raised by the first call of `begin`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status: Any = ModelStatus()
        self.fails: BaseException | None = None

    def expect_media(self, request_ids: list[int]) -> None:
        if self.fails is not None:
            raise self.fails
        self.calls.append(("expect", request_ids))

    def forget_media(self, request_ids: list[int]) -> None:
        self.calls.append(("forget", list(request_ids)))

    def abort(self, request_ids: list[int]) -> None:
        self.calls.append(("abort", list(request_ids)))

    def confirm_status(self) -> Any:
        if isinstance(self.status, Exception):
            raise self.status
        return self.status


class ScriptedPreparer:
    """Prepares requests once they may go on, and notes in which threads. `found` says what comes of a request, if not
    that it can be computed; `untried` are prompts whose grammars are still to be tried."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.found: dict[int, Any] = {}
        self.items: list[Any] = []
        self.fails: Exception | None = None
        self.untried: list[GenerationRequest] = []
        self.tried: list[Any] = []
        self.trial: Future[Any] | None = None
        self.answers = self.prompts = self

    def prepare(self, requests: Mapping[int, GenerationRequest], *others: Any) -> dict[int, Any]:
        self._go_on()
        self.calls.append((dict(requests), *others))
        if self.fails is not None:
            raise self.fails
        prompt = SimpleNamespace(items=self.items)
        return {i: self.found.get(i, (SimpleNamespace(prompt=prompt, request_id=i), f"answer {i}")) for i in requests}

    def is_tried(self, request: GenerationRequest) -> bool:
        return request not in self.untried

    def join_trial(self, request: GenerationRequest, cancellation: Cancellation) -> Future[Any] | None:
        return self.trial

    def try_grammar(self, request: GenerationRequest, cancellation: Cancellation) -> str:
        self._go_on()
        self.tried.append(request)
        if self.fails is not None:
            raise self.fails
        return "program"

    def tokenize(self, request: GenerationRequest) -> Any:
        self._go_on()
        return request.prompt

    def _go_on(self) -> None:
        self.threads.append(threading.current_thread().name.rpartition("_")[0])
        assert self.may_go_on.wait(60)


class Parts:
    """A preparation between scripted parts. `begin` begins requests whose ids count up from 1."""

    def __init__(self) -> None:
        self.core, self.preparer, self.room = ScriptedCore(), ScriptedPreparer(), MediaRoom(max_bytes=100)
        self.submitted: list[int] = []
        self.deltas: list[OutputDelta] = []
        delivery = SimpleNamespace(submit=lambda ready: self.submitted.extend(each.request_id for each, _ in ready))
        parts: Any = (self.core, self.preparer, delivery, self.room)
        self.preparation = Preparation(*parts)
        self.open = self.preparation.open
        self.num_begun = 0

    def begin(self, *requests: GenerationRequest, on_output: Callable[[OutputDelta], None] | None = None) -> list[int]:
        ids = [*range(self.num_begun + 1, self.num_begun + len(requests) + 1)]
        self.num_begun += len(requests)
        self.preparation.begin(ids, requests, on_output or self.deltas.append, 5.0, SharedPrompts(requests))
        return ids

    def run(self, *requests: GenerationRequest) -> tuple[list[int], dict[int, tuple[str | None, Any]]]:
        """Return the ids of the requests that were submitted, and how others ended."""
        self.begin(*requests)
        self.finish()
        return sorted(self.submitted), {each.request_id: (each.finish_reason, each.error) for each in self.deltas}

    def finish(self) -> None:
        self.preparer.may_go_on.set()
        self.room.close()
        self.preparation.end_threads()
        assert not self.open.waiting

    def hold(self) -> None:
        self.preparer.may_go_on.clear()


@pytest.fixture
def parts() -> Iterator[Parts]:
    parts = Parts()
    yield parts
    parts.preparer.may_go_on.set()
    parts.room.close()
    parts.preparation.end_threads()


def num_left(cancellation: Cancellation) -> int:
    return cancellation._num_waiting


def settle(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, and see that it goes on to hold."""
    wait_until(condition)
    time.sleep(0.05)
    assert condition()


# --- to the core ------------------------------------------------------------------------------------------------------


def test_requests_for_one_prompt_are_prepared_together_and_submitted(parts: Parts) -> None:
    other = replace(TEXT, prompt="other")
    assert parts.run(TEXT, other, TEXT) == ([1, 2, 3], {})
    by_ids = {tuple(call[0]): call for call in parts.preparer.calls}
    assert {*by_ids} == {(1, 3), (2,)}
    requests, on_output, received_at, prompts, cancellation = by_ids[1, 3]
    assert requests == {1: TEXT, 3: TEXT} and on_output == parts.deltas.append and received_at == 5.0
    assert isinstance(prompts, SharedPrompts) and num_left(cancellation) == 2 and num_left(by_ids[2,][-1]) == 1
    assert parts.core.calls == [("expect", []), ("forget", []), ("forget", [])]


def test_a_request_waits_until_it_is_submitted(parts: Parts) -> None:
    parts.hold()
    parts.begin(TEXT, replace(TEXT, prompt="other"))
    assert {*parts.open.waiting} == {1, 2}
    assert all(each.on_output == parts.deltas.append for each in parts.open.waiting.values())
    parts.finish()


def test_the_core_expects_media_that_are_at_hand(parts: Parts) -> None:
    assert parts.run(TEXT, PICTURE, FETCHED, PICTURE) == ([1, 2, 3, 4], {})
    assert parts.core.calls[0] == ("expect", [2, 4])


def test_memory_of_media_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    returned = SimpleNamespace(return_if_due=lambda: calls.append(1))
    monkeypatch.setattr("seesay.engine.front.preparation.MemoryReturn", lambda: returned)
    parts = Parts()
    assert parts.run(TEXT, FETCHED)[0] == [1, 2] and calls == [1]


# --- threads ----------------------------------------------------------------------------------------------------------


def test_media_have_threads_of_their_own(parts: Parts) -> None:
    parts.hold()
    parts.begin(*(replace(TEXT, prompt=f"{number}") for number in range(6)))
    settle(lambda: parts.preparer.threads == ["seesay-prepare"] * 4)
    parts.begin(PICTURE)
    settle(lambda: parts.preparer.threads[4:] == ["seesay-prepare-media"])


def test_media_of_one_owner_leave_threads_for_others(parts: Parts) -> None:
    parts.hold()
    parts.begin(*(replace(PICTURE, owner="a", cache_salt=f"{number}") for number in range(30)))
    settle(lambda: len(parts.preparer.threads) == 24)
    parts.begin(*(replace(PICTURE, owner="b", cache_salt=f"{number}") for number in range(30)))
    settle(lambda: len(parts.preparer.threads) == 32)


def test_grammars_are_tried_in_threads_of_their_own(parts: Parts) -> None:
    parts.hold()
    requests = [replace(TEXT, owner=number // 4, cache_salt=f"{number}") for number in range(48)]
    parts.preparer.untried += requests
    parts.begin(*requests[:4])
    settle(lambda: parts.preparer.threads == ["seesay-try-grammar"] * 3)
    parts.begin(*requests[4:])
    settle(lambda: parts.preparer.threads == ["seesay-try-grammar"] * 32)


def test_a_request_is_prepared_when_all_grammars_of_its_prompt_are_tried(parts: Parts) -> None:
    short, long = (replace(TEXT, gen_config=GenerationConfig(max_new_tokens=number)) for number in (1, 2))
    parts.preparer.untried.append(long)
    parts.begin(short, long, short)
    wait_until(lambda: len(parts.submitted) == 3)
    assert parts.preparer.tried == [short, long, short]
    assert parts.preparer.threads == [*["seesay-try-grammar"] * 3, "seesay-prepare"]
    parts.preparer.untried.append(FETCHED)
    parts.begin(FETCHED)
    wait_until(lambda: len(parts.submitted) == 4)
    assert parts.preparer.threads[4:] == ["seesay-try-grammar", "seesay-prepare-media"]


def test_a_grammar_that_is_refused_ends_its_request_when_that_is_prepared(parts: Parts) -> None:
    parts.preparer.fails = ValueError("odd")
    parts.preparer.untried.append(TEXT)
    parts.begin(TEXT, TEXT)
    wait_until(lambda: len(parts.deltas) == 2)
    assert parts.preparer.tried == [TEXT, TEXT] and len(parts.preparer.calls) == 1


def test_where_no_thread_can_be_started_that_of_the_grammar_prepares(parts: Parts) -> None:
    parts.preparer.untried.append(TEXT)
    parts.preparation._threads[False].close()
    parts.begin(TEXT)
    wait_until(lambda: parts.submitted == [1])
    assert parts.preparer.threads == ["seesay-try-grammar"] * 2


def test_grammars_are_tried_before_their_request(parts: Parts) -> None:
    future = parts.preparation.try_grammar(TEXT, Cancellation())
    assert str(future.result(60)) == "program" and parts.preparer.threads == ["seesay-try-grammar"]
    known = parts.preparer.trial = Future()
    assert parts.preparation.try_grammar(TEXT, Cancellation()) is known and len(parts.preparer.tried) == 1
    parts.preparer.trial = None
    parts.hold()
    for number in range(5):
        parts.preparation.try_grammar(replace(TEXT, owner="a", cache_salt=f"{number}"), Cancellation())
    settle(lambda: len(parts.preparer.threads) == 1 + 3)


def test_prompts_are_tokenized_as_texts_are_prepared(parts: Parts) -> None:
    assert parts.preparation.tokenize(TEXT).result(60) == "hi"
    assert parts.preparer.threads == ["seesay-prepare"]


def test_all_threads_end(parts: Parts) -> None:
    parts.finish()
    for threads in (parts.preparation._grammar_threads, *parts.preparation._threads.values()):
        with pytest.raises(RuntimeError, match="is closed"):
            threads.submit(None, parts.finish)


# --- what ends before the core ----------------------------------------------------------------------------------------


def test_what_cannot_be_prepared_ends_and_others_go_on(parts: Parts) -> None:
    parts.preparer.found = {1: ERROR, 3: ERROR}
    assert parts.run(PICTURE, PICTURE, PICTURE) == ([2], {1: ("error", ERROR), 3: ("error", ERROR)})
    assert parts.core.calls == [("expect", [1, 2, 3]), ("forget", [1, 3])]


def test_nothing_is_submitted_where_nothing_is_prepared(parts: Parts) -> None:
    parts.preparer.found = {1: ERROR}
    submit: Any = pytest.fail
    parts.preparation._delivery.submit = submit  # type: ignore[method-assign]
    assert parts.run(TEXT) == ([], {1: ("error", ERROR)})


def test_a_sleeping_engine_prepares_nothing(parts: Parts) -> None:
    parts.core.status = ModelStatus(asleep=("weights",), level=1)
    submitted, ended = parts.run(TEXT, TEXT)
    assert not submitted and not parts.preparer.calls and {*ended} == {1, 2}
    assert all(error.code is ErrorCode.SLEEPING for _, error in ended.values())


@pytest.mark.parametrize("of_core", [True, False])
def test_a_failure_ends_all_requests_of_a_prompt(parts: Parts, of_core: bool) -> None:
    if of_core:
        parts.core.status = ERROR
    else:
        parts.preparer.fails = ERROR
    assert parts.run(TEXT, TEXT) == ([], {1: ("error", ERROR), 2: ("error", ERROR)})


def test_a_receiver_that_fails_leaves_others_alone(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    taken: list[int] = []

    def fail(delta: OutputDelta) -> None:
        taken.append(delta.request_id)
        raise SystemExit

    parts.preparer.found = {1: ERROR, 2: ERROR}
    parts.begin(TEXT, TEXT, on_output=fail)
    parts.finish()
    assert taken == [1, 2] and "the receiver of request 2 failed" in caplog.text


def test_an_aborted_request_tells_its_receiver_and_its_prompt_goes_on(parts: Parts) -> None:
    parts.hold()
    parts.begin(PICTURE, PICTURE)
    wait_until(lambda: len(parts.preparer.threads) == 1)
    cancellation = parts.open.waiting[1].cancellation
    parts.core.calls.clear()
    assert parts.preparation.abort(1) and not parts.preparation.abort(1) and not parts.preparation.abort(9)
    assert [(each.request_id, each.finish_reason) for each in parts.deltas] == [(1, "abort")]
    assert parts.core.calls == [("forget", [1])] and num_left(cancellation) == 1
    parts.finish()
    assert parts.submitted == [2] and len(parts.deltas) == 1


def test_what_was_aborted_before_its_thread_is_not_prepared(parts: Parts) -> None:
    parts.hold()
    parts.begin(*(replace(TEXT, prompt=f"{number}") for number in range(4)))
    wait_until(lambda: len(parts.preparer.threads) == 4)
    parts.begin(TEXT, TEXT)
    parts.begin(replace(TEXT, prompt="other"))
    assert parts.preparation.abort(5) and parts.preparation.abort(7)
    parts.finish()
    assert sorted([*call[0]] for call in parts.preparer.calls) == [[1], [2], [3], [4], [6]]
    assert sorted(parts.submitted) == [1, 2, 3, 4, 6]


# --- the end of the engine --------------------------------------------------------------------------------------------


def test_a_closed_engine_takes_no_requests(parts: Parts) -> None:
    parts.open.check()
    assert parts.open.try_close() and not parts.open.try_close()
    for call in (
        parts.open.check, lambda: parts.begin(TEXT), lambda: parts.preparation.tokenize(TEXT),
        lambda: parts.preparation.try_grammar(TEXT, Cancellation()),
    ):  # fmt: skip
        with pytest.raises(RequestError, match="the engine is closed") as caught:
            call()
        assert caught.value.code is ErrorCode.CLOSED
    assert not parts.open.waiting and not parts.preparer.threads


def test_what_is_prepared_when_the_engine_is_closed_ends(parts: Parts) -> None:
    parts.hold()
    parts.begin(TEXT)
    wait_until(lambda: len(parts.preparer.threads) == 1)
    assert parts.open.try_close()
    parts.finish()
    [delta] = parts.deltas
    assert not parts.submitted and delta.finish_reason == "error" and isinstance(delta.error, RequestError)
    assert delta.error.code is ErrorCode.CLOSED and "closed before the request was computed" in str(delta.error)


@pytest.mark.parametrize(
    ("error", "is_closed", "expected"),
    [
        (RuntimeError("no thread"), False, RuntimeError), (RuntimeError("no thread"), True, RequestError),
        (KeyboardInterrupt(), False, KeyboardInterrupt), (KeyboardInterrupt(), True, KeyboardInterrupt),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_begun_are_withdrawn(
    parts: Parts, error: BaseException, is_closed: bool, expected: type[BaseException]
) -> None:
    cancellations: list[Cancellation] = []

    def fail(request_ids: list[int]) -> None:
        cancellations.extend(dict.fromkeys(each.cancellation for each in parts.open.waiting.values()))
        parts.open.is_closed = is_closed
        raise error

    parts.core.expect_media = fail  # type: ignore[method-assign]
    with pytest.raises(expected) as caught:
        parts.begin(TEXT, TEXT, replace(TEXT, prompt="other"))
    if isinstance(caught.value, RequestError):
        assert caught.value.code is ErrorCode.CLOSED
    assert parts.core.calls == [("forget", [1, 2, 3]), ("abort", [1, 2, 3])]
    assert list(map(num_left, cancellations)) == [0, 0]
    assert not parts.open.waiting and not parts.deltas


def test_what_was_begun_before_ends_silently(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.hold()
    parts.preparation._threads[True].close()
    with pytest.raises(RuntimeError):
        parts.begin(TEXT, PICTURE, replace(TEXT, prompt="other"))
    parts.finish()
    assert not parts.submitted and not parts.deltas and len(parts.preparer.calls) <= 1


# --- room for media ---------------------------------------------------------------------------------------------------


def make_item(number: int, num_bytes: int, *, has_arrays: bool = True) -> Any:
    return SimpleNamespace(hash=bytes([number]), num_array_bytes=num_bytes, has_arrays=has_arrays)


def test_media_wait_for_room_and_texts_do_not(parts: Parts) -> None:
    parts.room.hold(77, {b"a": 100})
    parts.begin(FETCHED)
    parts.begin(TEXT)
    settle(lambda: parts.submitted == [2] and parts.preparer.threads == ["seesay-prepare"])
    parts.room.release([77])
    wait_until(lambda: parts.submitted == [2, 1])


def test_arrays_are_held_once_for_all_requests_of_a_prompt(parts: Parts) -> None:
    parts.preparer.items = [make_item(1, 30), make_item(2, 40, has_arrays=False), make_item(3, 5)]
    parts.preparer.found = {1: ERROR}
    parts.begin(PICTURE, PICTURE, PICTURE)
    wait_until(lambda: len(parts.submitted) == 2)
    assert parts.room.used_bytes == 35
    parts.room.release([3])
    assert parts.room.used_bytes == 35
    parts.room.release([2])
    assert parts.room.used_bytes == 0


def test_arrays_of_what_is_not_submitted_take_no_room(parts: Parts) -> None:
    parts.preparer.items = [make_item(1, 30)]
    parts.hold()
    parts.begin(PICTURE)
    wait_until(lambda: len(parts.preparer.threads) == 1)
    assert parts.preparation.abort(1)
    parts.finish()
    assert parts.room.used_bytes == 0
    closed = Parts()
    closed.preparer.items = [make_item(1, 30)]
    closed.hold()
    closed.begin(PICTURE)
    wait_until(lambda: len(closed.preparer.threads) == 1)
    closed.open.try_close()
    closed.finish()
    assert closed.room.used_bytes == 0 and len(closed.deltas) == 1
