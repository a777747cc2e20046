"""Backpressure on requests whose media wait for the encoder."""

from __future__ import annotations

import threading

from seesay.engine.front.media_room import MediaRoom

WAIT_S = 60


def start(call: object, *arguments: object) -> tuple[threading.Thread, threading.Event]:
    """Call in a thread; the event is set when the call has returned."""
    done = threading.Event()

    def run() -> None:
        assert callable(call)
        call(*arguments)
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, done


def await_waiting(room: MediaRoom, num: int) -> None:
    """Wait until `num` threads wait for room."""
    while len(room._tickets) < num:
        threading.Event().wait(0.001)


def test_what_does_not_fit_waits_until_an_item_is_encoding_or_a_request_ends() -> None:
    room = MediaRoom(max_bytes=100)
    room.hold(1, {b"a": 60})
    room.hold(2, {b"b": 40})
    assert room.used_bytes == 100
    _, third = start(room.hold, 3, {b"c": 30})
    await_waiting(room, 1)
    _, fourth = start(room.hold, 4, {b"d": 10})
    await_waiting(room, 2)
    assert not third.is_set() and not fourth.is_set()
    room.note_encoding(b"b")
    assert third.wait(WAIT_S) and fourth.wait(WAIT_S) and room.used_bytes == 100
    room.release([1, 2, 3, 4])
    assert room.used_bytes == 0 and not room._held and not room._holders


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    room = MediaRoom(max_bytes=100)
    room.hold(1, {b"a": 60})
    _, large = start(room.hold, 2, {b"b": 90})
    await_waiting(room, 1)
    _, small = start(room.hold, 3, {b"c": 10})
    await_waiting(room, 2)
    assert not small.is_set(), "it would fit, but is behind"
    room.release([1])
    assert large.wait(WAIT_S) and small.wait(WAIT_S)


def test_a_request_larger_than_the_room_is_admitted_alone() -> None:
    room = MediaRoom(max_bytes=100)
    room.hold(1, {b"a": 1000})
    _, second = start(room.hold, 2, {b"b": 1000})
    await_waiting(room, 1)
    assert not second.is_set() and room.used_bytes == 1000
    room.release([1])
    assert second.wait(WAIT_S) and room.used_bytes == 1000


def test_equal_items_are_given_up_for_all_requests() -> None:
    room = MediaRoom(max_bytes=100)
    room.hold(1, {b"a": 10, b"b": 20})
    room.hold(2, {b"a": 10})
    room.note_encoding(b"a")
    room.note_encoding(b"a")
    assert room.used_bytes == 20
    room.release([2, 1, 1])
    assert room.used_bytes == 0


def test_requests_without_arrays_never_wait_and_closing_lets_all_pass() -> None:
    room = MediaRoom(max_bytes=100)
    room.hold(1, {b"a": 100})
    room.hold(2, {})
    room.hold(3, {b"b": 0})
    assert room.used_bytes == 100
    _, held = start(room.hold, 4, {b"c": 1})
    _, waited = start(room.wait)
    await_waiting(room, 1)
    assert not held.is_set() and not waited.is_set()
    room.close()
    assert held.wait(WAIT_S) and waited.wait(WAIT_S)
