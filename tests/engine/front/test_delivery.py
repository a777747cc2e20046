"""What becomes of the core's outputs: each request gets its text, ends once, and never waits for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

from seesay.engine.front.delivery import Delivery
from seesay.engine.front.media_room import MediaRoom
from seesay.engine.token_messages import TokenOutput
from seesay.errors import ErrorCode, RequestError
from seesay.values import OutputDelta


class FakeCore:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, *arguments))


class FakeAnswer:
    """Makes one delta of each output; stops at the token 0. `fails` and `refuses` raise, in `take` and `on_output`."""

    def __init__(self, request_id: int, **options: Any) -> None:
        self.request_id = request_id
        self.deltas: list[OutputDelta] = []
        self.has_stopped = False
        self.load_features: dict[int, Callable[[], Any]] = options.pop("load_features", {})
        self.fails: BaseException | None = options.pop("fails", None)
        self.refuses: BaseException | None = options.pop("refuses", None)
        self.is_silent = options.pop("is_silent", False)
        assert not options

    def take(self, output: TokenOutput) -> OutputDelta | None:
        if self.fails is not None:
            raise self.fails
        self.has_stopped |= 0 in output.token_ids
        if self.is_silent and output.finish_reason is None:
            return None
        return OutputDelta(request_id=self.request_id, token_ids=output.token_ids, finish_reason=output.finish_reason)

    def on_output(self, delta: OutputDelta) -> None:
        self.deltas.append(delta)
        if self.refuses is not None:
            raise self.refuses


class Parts:
    def __init__(self, **options: Any) -> None:
        core: Any = FakeCore()
        self.core = core
        self.room = MediaRoom(max_bytes=100)
        self.delivery = Delivery(self.core, self.room)
        self.answers: list[Any] = [FakeAnswer(1, **options), FakeAnswer(2)]
        requests: list[Any] = [(SimpleNamespace(request_id=each.request_id), each) for each in self.answers]
        self.delivery.submit(requests)
        [(name, submitted)] = self.take()
        assert name == "submit" and [each.request_id for each in submitted] == [1, 2]

    def take(self) -> list[tuple[Any, ...]]:
        taken: list[tuple[Any, ...]] = self.core.calls
        self.core.calls = []
        return taken

    def give(self, *outputs: TokenOutput) -> list[tuple[Any, ...]]:
        """Returns what the core was asked for."""
        self.delivery.on_outputs(outputs)
        return self.take()


@pytest.fixture
def parts() -> Parts:
    return Parts()


def out(request_id: int, *token_ids: int, reason: Any = None) -> TokenOutput:
    return TokenOutput(request_id=request_id, token_ids=token_ids, finish_reason=reason)


def test_outputs_go_to_their_requests_until_the_final_one(parts: Parts) -> None:
    assert parts.give(out(1, 5), out(2, 6), out(1, 7, reason="length"), out(1, 8)) == []
    first, second = parts.answers
    assert [each.token_ids for each in first.deltas] == [(5,), (7,)] and first.deltas[-1].finish_reason == "length"
    assert [each.token_ids for each in second.deltas] == [(6,)]
    assert parts.give(out(3, 5)) == [], "nobody knows it"


def test_a_stop_word_ends_the_request_in_the_core_once(parts: Parts) -> None:
    assert parts.give(out(1, 5)) == []
    assert parts.give(out(1, 0)) == [("finish", 1, "stop")]
    assert parts.give(out(1, 7), out(1, 0)) == []
    assert parts.give(out(1, reason="stop")) == []
    assert parts.answers[0].deltas[-1].finish_reason == "stop"


def test_a_stop_word_in_the_final_output_needs_no_end(parts: Parts) -> None:
    assert parts.give(out(1, 0, reason="length")) == []
    assert len(parts.answers[0].deltas) == 1


def test_nothing_is_handed_out_where_there_is_no_delta() -> None:
    parts = Parts(is_silent=True)
    assert parts.give(out(1, 5), out(1, 0)) == [("finish", 1, "stop")]
    assert parts.answers[0].deltas == []


@pytest.mark.parametrize("error", [ValueError("no such id"), KeyboardInterrupt()])
def test_tokens_that_make_no_text_end_their_request_alone(error: BaseException) -> None:
    parts = Parts(fails=error)
    assert parts.give(out(1, 5), out(2, 6)) == [("abort", [1])]
    [delta] = parts.answers[0].deltas
    assert delta.finish_reason == "error" and isinstance(delta.error, RequestError)
    assert parts.give(out(1, reason="abort")) == [], "its end is not handed out twice"
    assert len(parts.answers[0].deltas) == 1 and len(parts.answers[1].deltas) == 1


def test_a_final_output_that_makes_no_text_ends_once() -> None:
    parts = Parts(fails=ValueError("no such id"))
    assert parts.give(out(1, 5, reason="length")) == [], "the core has ended it"
    assert [each.finish_reason for each in parts.answers[0].deltas] == ["error"]


def test_a_receiver_that_fails_has_its_request_aborted_and_others_go_on() -> None:
    parts = Parts(refuses=SystemExit())
    assert parts.give(out(1, 5), out(2, 6)) == [("abort", [1])]
    assert parts.give(out(1, 5, reason="abort"), out(2, 6)) == [], "it has ended"
    assert len(parts.answers[0].deltas) == 2 and len(parts.answers[1].deltas) == 2


def test_an_answer_that_another_thread_ended_is_handed_out_once(parts: Parts) -> None:
    answer = parts.answers[0]
    take = answer.take

    def take_and_end(output: TokenOutput) -> OutputDelta | None:
        answer.take = take
        parts.delivery.on_outputs([out(1, reason="abort")])
        delta: OutputDelta | None = take(output)
        return delta

    answer.take = take_and_end
    parts.give(out(1, reason="stop"))
    assert [each.finish_reason for each in answer.deltas] == ["abort"]


def test_room_for_arrays_is_free_again_when_they_are_encoded_or_their_request_ends(parts: Parts) -> None:
    parts.room.hold(1, {b"a": 30})
    parts.room.hold(2, {b"b": 30, b"c": 40})
    parts.give(out(1, 5), out(2, 6))
    assert parts.room.used_bytes == 100
    parts.delivery.on_encoding(b"b")
    assert parts.room.used_bytes == 70
    parts.give(out(1, reason="stop"))
    assert parts.room.used_bytes == 40
    parts.give(out(2, reason="error"))
    assert parts.room.used_bytes == 0


# --- media that are decoded again -------------------------------------------------------------------------------------


def test_features_are_made_in_a_thread_and_given() -> None:
    threads: list[str] = []

    def load() -> dict[str, int]:
        threads.append(threading.current_thread().name)
        return {"a": 1}

    parts = Parts(load_features={2: load})
    try:
        parts.delivery.on_features_wanted(1, 2)
        wait_until(lambda: bool(parts.core.calls))
        assert parts.take() == [("give_features", 1, 2, {"a": 1})]
        assert threads[0].startswith("seesay-features")
        parts.delivery.on_features_wanted(3, 2)
        assert parts.take() == [], "it has ended"
    finally:
        parts.delivery.close()


@pytest.mark.parametrize("error", [RequestError(ErrorCode.INVALID_MEDIA, "broken"), KeyboardInterrupt()])
def test_media_that_cannot_be_decoded_again_end_their_request(error: BaseException) -> None:
    def load() -> object:
        raise error

    parts = Parts(load_features={0: load})
    try:
        parts.delivery.on_features_wanted(1, 0)
        wait_until(lambda: bool(parts.core.calls))
        [(_, request_id, item_index, given)] = parts.take()
        assert (request_id, item_index) == (1, 0) and isinstance(given, RequestError)
        expected = ErrorCode.INVALID_MEDIA if isinstance(error, RequestError) else ErrorCode.INTERNAL
        assert given.code is expected
    finally:
        parts.delivery.close()


def test_a_request_ends_where_no_thread_can_be_started_for_its_media(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would ever answer the core. What it says is why."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    parts = Parts(load_features={0: dict})
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        parts.delivery.on_features_wanted(1, 0)
    [(name, request_id, item_index, error)] = parts.take()
    assert (name, request_id, item_index) == ("give_features", 1, 0)
    assert isinstance(error, RequestError) and "can't start new thread" in str(error)
    parts.delivery.close()


def test_a_request_ends_that_wants_media_decoded_while_the_engine_is_closed() -> None:
    parts = Parts(load_features={0: dict})
    parts.delivery.close()
    parts.delivery.on_features_wanted(1, 0)
    [(_, _, _, error)] = parts.take()
    assert isinstance(error, RequestError) and error.code is ErrorCode.CLOSED


def test_two_media_are_decoded_at_once_and_no_more() -> None:
    begun, may_go_on = list[int](), threading.Event()

    def load(number: int) -> dict[str, int]:
        begun.append(number)
        assert may_go_on.wait(60)
        return {}

    parts = Parts(load_features={number: lambda number=number: load(number) for number in range(3)})
    try:
        for number in range(3):
            parts.delivery.on_features_wanted(1, number)
        wait_until(lambda: len(begun) == 2)
        assert len(parts.delivery._threads._threads) == 2
        may_go_on.set()
        wait_until(lambda: len(parts.core.calls) == 3)
    finally:
        may_go_on.set()
        parts.delivery.close()
