"""The writer of a link: nobody waits for a process that does not read, and what waits is bounded and let go."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from link_child import Echo
from link_pair import linked, make_pair, read_next
from waiting import wait_until

from seesay.engine.process import arrays, segments
from seesay.engine.process.arrays import ArrayWriter
from seesay.engine.process.link import Limits, Link, LinkClosedError
from seesay.engine.process.segments import MAX_SEGMENTS, SEGMENT_BYTES
from seesay.engine.process.writer import Writer

LARGE = 1 << 16
NUM_LARGE = 600
"""More than a socket's buffer holds descriptors of."""
NUM_LAST = 48
"""Messages that ZeroMQ holds for a peer, however slowly it reads."""

Pair = tuple[Link[Any, Any], Link[Any, Any]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with linked(Echo, Echo) as pair:
        yield pair


def count_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def count_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:seesay")


def fill(link: Link[Any, Any]) -> None:
    """Send until a message waits for the other process."""
    while not link._writer._is_blocked:
        if not link.num_waiting_bytes:
            link.send(Echo(-1, {}))


def test_sending_waits_for_nobody_and_what_waits_comes_in_order(pair: Pair) -> None:
    """The sender and the reader are one thread: what waited for the reader would never end."""
    link, other = pair
    written: list[int] = []

    def note(number: int, error: OSError | None) -> None:
        assert error is None
        written.append(number)

    for number in range(NUM_LARGE):
        for each, sent in ((number, {"a": np.full(LARGE, number % 251, np.uint8)}), (number + 10_000, {})):
            link.send(Echo(each, sent), partial(note, each))
    wait_until(lambda: link._writer._is_blocked)
    assert len(written) < 2 * NUM_LARGE and link.num_waiting_bytes > LARGE
    for number in range(NUM_LARGE):
        first, second = read_next(other), read_next(other)
        assert (first.number, second.number) == (number, number + 10_000)
        assert (first.arrays["a"] == number % 251).all()
        del first
    wait_until(lambda: link.num_waiting_bytes == 0)
    assert written == [n for number in range(NUM_LARGE) for n in (number, number + 10_000)]


def test_arrays_are_held_until_they_are_written_and_no_longer(pair: Pair) -> None:
    link, other = pair
    fill(link)
    array = np.arange(LARGE, dtype=np.int64).reshape(-1, 2)[:, ::-1]  # no contiguous one
    held = weakref.ref(array.base if array.base is not None else array)
    expected, done = array.copy(), threading.Event()
    link.send(Echo(1, {"a": array}), lambda _: done.set())
    del array
    gc.collect()
    assert held() is not None and not done.is_set()
    while (message := read_next(other)).number != 1:
        pass
    np.testing.assert_array_equal(message.arrays["a"], expected)
    assert done.wait(60)
    wait_until(lambda: held() is None)


def test_a_process_for_which_too_much_waits_is_lost() -> None:
    """Not before: one message may be larger than all that may wait."""
    with linked(Echo, Echo, Limits(max_bytes=1 << 20)) as (link, _):
        fill(link)
        link.send(Echo(1, {"a": np.zeros(1 << 21, np.uint8)}))
        assert link.num_waiting_bytes > 1 << 20
        with pytest.raises(LinkClosedError, match=r"takes no messages, and \d+ bytes wait"):
            link.send(Echo(2, {}))
        assert link.is_broken and link.num_waiting_bytes == 0
        with pytest.raises(LinkClosedError, match="takes no messages"):
            link.send(Echo(3, {}))


def test_small_messages_count_too() -> None:
    with linked(Echo, Echo, Limits(max_bytes=1 << 20)) as (link, _):
        with pytest.raises(LinkClosedError, match="bytes wait"):
            for _ in range(1 << 20):
                link.send(Echo(1, {}))
        assert link.is_broken


def test_a_process_that_reads_is_not_lost_however_much_is_sent() -> None:
    with linked(Echo, Echo, Limits(max_stall_s=5.0, max_bytes=1 << 20)) as (link, other):
        for number in range(300):
            link.send(Echo(number, {"a": np.zeros(1 << 20, np.uint8)}))
            assert read_next(other).number == number


def test_a_process_that_reads_again_may_be_sent_much_at_once() -> None:
    """What it did not take before does not count against it."""
    with linked(Echo, Echo, Limits(max_bytes=1 << 20)) as (link, other):
        fill(link)
        link.send(Echo(1, {}))
        while read_next(other).number != 1:
            pass
        wait_until(lambda: link.num_waiting_bytes == 0)
        for number in range(2, 5):
            link.send(Echo(number, {"a": np.zeros(1 << 21, np.uint8)}))
        assert [read_next(other).number for _ in range(3)] == [2, 3, 4]


def test_small_messages_go_out_at_once_again_behind_a_large_one(pair: Pair) -> None:
    """Their sender's thread sends them: another one would have to be waited for."""
    link, other = pair
    link.send(Echo(1, {"a": np.zeros(LARGE, np.uint8)}))
    assert read_next(other).number == 1
    wait_until(lambda: link.num_waiting_bytes == 0)
    threads: list[threading.Thread] = []
    link.send(Echo(2, {}), lambda _: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()] and read_next(other).number == 2


def test_what_waits_for_a_process_that_dies_waits_no_longer(pair: Pair) -> None:
    """Without a limit in time, too."""
    link, other = pair
    fill(link)
    other.close()
    wait_until(lambda: link.is_broken)
    with pytest.raises(LinkClosedError, match="the other process has gone"):
        link.send(Echo(1, {}))


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_where_the_system_starts_no_thread_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    outgoing: Any = None
    ours, theirs = socket.socketpair()
    with ours, theirs, monkeypatch.context() as patch:
        refuse_threads(patch)
        before = count_files()
        with pytest.raises(BlockingIOError, match="can't start new thread"):
            Writer(outgoing, ours, Limits())
        gc.collect()
        assert count_files() == before


def test_a_socket_that_fails_loses_its_process() -> None:
    """Its sender learns so at once, and all later ones."""

    class Failing:
        def send(self, payload: bytes, flags: int) -> None:
            raise zmq.ZMQError(zmq.ETERM)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        outgoing: Any = Failing()
        writer = Writer(outgoing, ours, Limits())
        for _ in range(2):
            with pytest.raises(LinkClosedError, match="a message could not be sent"):
                writer.put(b"", ArrayWriter(), None)
        assert writer.is_broken and writer.num_waiting_bytes == 0
        writer.close()


def test_a_process_that_reads_nothing_for_too_long_is_lost() -> None:
    with linked(Echo, Echo, Limits(max_stall_s=0.05)) as (link, _):
        while not link.is_broken:
            try:
                link.send(Echo(1, {}))
            except LinkClosedError:
                break
        with pytest.raises(LinkClosedError, match=r"has taken no message for 0\.05 s"):
            link.send(Echo(1, {}))


def test_a_process_that_dies_takes_nothing_of_ours_with_it() -> None:
    """However much waits for it: its arrays, their files and their mappings are let go."""
    gc.collect()
    files, mappings = count_files(), count_mappings()
    link, other = make_pair(Echo, Echo)
    held = []
    for number in range(NUM_LARGE):
        array = np.full(LARGE, number % 251, np.uint8)
        held.append(weakref.ref(array))
        link.send(Echo(number, {"a": array}))
    del array
    wait_until(lambda: link._writer._is_blocked)
    assert any(ref() is not None for ref in held)
    other.close()
    wait_until(lambda: link.is_broken)
    wait_until(lambda: all(ref() is None for ref in held))
    with pytest.raises(LinkClosedError):
        link.send(Echo(1, {}))
    link.close()
    gc.collect()
    assert (count_files(), count_mappings()) == (files, mappings)


def test_closing_waits_for_nobody() -> None:
    link, other = make_pair(Echo, Echo)
    for _ in range(NUM_LARGE):
        link.send(Echo(1, {"a": np.zeros(LARGE, np.uint8)}))
    thread = link._writer._thread
    link.close()
    assert not thread.is_alive()
    with pytest.raises(LinkClosedError, match="the link is closed"):
        link.send(Echo(1, {}))
    other.close()


def test_last_words_go_out_to_a_process_that_reads() -> None:
    link, other = make_pair(Echo, Echo)
    received: list[int] = []

    def read() -> None:
        while len(received) < NUM_LAST:
            received.append(read_next(other).number)

    for number in range(NUM_LAST):
        link.send(Echo(number, {"a": np.zeros(LARGE, np.uint8)}))
    reader = threading.Thread(target=read)
    reader.start()
    link.close(delivers=True)
    reader.join(60)
    assert received == list(range(NUM_LAST))
    other.close()


def test_a_message_without_memory_for_its_arrays_says_so_and_others_go_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise OSError(24, f"no file for {name}")

    link, other = pair
    errors: list[OSError | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "make_file", refuse)
        patch.setattr(segments, "make_file", refuse)
        link.send(Echo(1, {"a": np.zeros(LARGE, np.uint8)}), errors.append)
        link.send(Echo(2, {}), errors.append)
        assert read_next(other).number == 2
        wait_until(lambda: len(errors) == 2)
    assert isinstance(errors[0], OSError) and errors[1] is None
    link.send(Echo(3, {"a": np.ones(LARGE, np.uint8)}))
    assert (read_next(other).arrays["a"] == 1).all()
    assert link._writer.segments.num_used <= 1


def test_where_nobody_asks_the_link_ends_without_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(24, f"no file for {name}")

    monkeypatch.setattr(segments, "make_file", refuse)
    pair[0].send(Echo(1, {"a": np.zeros(LARGE, np.uint8)}))
    wait_until(lambda: pair[0].is_broken)
    with pytest.raises(LinkClosedError, match="no file for"):
        pair[0].send(Echo(2, {}))


@pytest.mark.parametrize("spare", [-64, -1, 0, 1, 64])
def test_arrays_that_just_fit_into_a_segment_come_back_equal(pair: Pair, spare: int) -> None:
    """Also those that do not, by a byte: they have memory of their own."""
    link, other = pair
    draw = np.random.default_rng(0)
    sizes = [1 << 20, SEGMENT_BYTES - 64 - (1 << 20) - spare]
    sent = {str(size): draw.integers(0, 256, size, dtype=np.uint8) for size in sizes}
    link.send(Echo(1, sent))
    message = read_next(other)
    for name, array in sent.items():
        np.testing.assert_array_equal(message.arrays[name], array)
        message.arrays[name][...] = 0  # whoever writes to them writes into nothing else
    has_segment = spare >= 0
    assert (link._writer.segments.num_used == 1) is has_segment
    del message
    wait_until(lambda: link._writer.segments.num_used == 0)


def test_messages_beyond_the_segments_have_memory_of_their_own(pair: Pair) -> None:
    link, other = pair
    kept = []
    for number in range(MAX_SEGMENTS + 2):
        link.send(Echo(number, {"a": np.full(LARGE, number, np.uint8)}))
        kept.append(read_next(other))
    assert link._writer.segments.num_used == MAX_SEGMENTS
    assert all((message.arrays["a"] == message.number).all() for message in kept)
