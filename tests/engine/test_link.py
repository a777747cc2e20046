"""The link between two processes: what crosses it, and what is left when either end dies."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import link_child
import msgspec
import numpy as np
import pytest
from forked_python import started
from link_child import Echo, Facts, Order
from link_pair import linked, read_next

from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.link import MAX_STALL_S, Link, LinkClosedError, choose_folder
from seesay.engine.process.segments import MAX_SEGMENTS, SegmentReader
from seesay.engine.process.writer import SHARED

TESTS = Path(__file__).parents[1] / "support"


def receive(child: ChildProcess[Any, Any], timeout_s: float = 60) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if child.wait(0.2):
            return child.link.receive()
        assert child.find_end() is None, f"the child ended: {child.find_end()}"
    raise AssertionError("no message came")


def start() -> ChildProcess[Any, Any]:
    child: ChildProcess[Any, Any] = ChildProcess("link_child", receives=link_child.ToParent)
    assert receive(child).number == -1
    child.link.send(Echo(0, {}))
    receive(child)
    return child


def test_folders_are_where_the_system_wants_them_unless_the_path_of_a_socket_gets_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for parent, expected in (("/var/tmp", "/var/tmp"), ("/" + 69 * "x", "/" + 69 * "x"), ("/" + 70 * "x", "/tmp")):
        monkeypatch.setattr(tempfile, "tempdir", parent)
        folders = {choose_folder() for _ in range(10)}
        assert len(folders) == 10 and {str(folder.parent) for folder in folders} == {expected}
        assert all(len(f"{folder}/from") <= 107 for folder in folders)


@pytest.fixture(scope="module")
def child() -> Iterator[ChildProcess[Any, Any]]:
    with started():
        child = start()
    yield child
    child.end()


def count_shared_bytes(pid: int | str = "self") -> int:
    """Bytes of a process's mappings of nameless shared memory, without the segments that are used again."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:seesay " in line:
            first, last = line.split()[0].split("-")
            total += int(last, 16) - int(first, 16)
    return total


def test_arrays_of_all_sizes_come_back_equal(child: ChildProcess[Any, Any]) -> None:
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "empty": np.zeros((0, 3), np.int64),
        "scalar": np.array(2.5, np.float32),
        "small": draw.integers(0, 9, (3, 5)),
        "bools": draw.integers(0, 2, 17).astype(bool),
        "large": draw.integers(0, 256, (7, 333, 111), dtype=np.uint8),
        "floats": draw.normal(size=(300, 300)).astype(np.float32),
        "strided": draw.integers(0, 256, (600, 600), dtype=np.uint8)[::2, ::3],
        "also large": np.arange(100_000, dtype=np.int64),
    }
    child.link.send(Echo(5, arrays))
    answer = receive(child)
    assert answer.number == 5 and list(answer.arrays) == list(arrays)
    for name, array in arrays.items():
        assert answer.arrays[name].dtype == array.dtype and answer.arrays[name].shape == array.shape, name
        np.testing.assert_array_equal(answer.arrays[name], array, err_msg=name)
        answer.arrays[name][...] = 0  # all of them may be written to


def test_shared_memory_lives_as_long_as_the_arrays_in_it(child: ChildProcess[Any, Any]) -> None:
    """Of messages that are too large for a segment."""
    assert count_shared_bytes() == 0
    child.link.send(Echo(1, {"a": np.zeros(1 << 24, np.uint8), "b": np.zeros(1 << 24, np.uint8)}))
    answer = receive(child)
    assert count_shared_bytes() == 2 << 24
    kept = answer.arrays["a"][5:9]
    del answer
    assert count_shared_bytes() == 2 << 24
    del kept
    child.link.send(Echo(2, {}))  # the child holds its last message until the next one
    receive(child)
    assert count_shared_bytes() == 0 and count_shared_bytes(child.pid) == 0


def test_a_segment_is_used_again_when_nothing_refers_to_its_arrays() -> None:
    """One is enough for messages that are read one after another; the other process asks for no more memory."""
    child = start()
    try:
        for number in range(1, 20):
            child.link.send(Echo(number, {"a": np.full(1 << 20, number, np.uint8)}))
            answer = receive(child)
            assert (answer.arrays["a"] == number).all()
            del answer
            child.link.send(Echo(0, {}))  # the child holds its last message until the next one
            receive(child)
        assert child.link._writer.segments.num_used == 0 and len(child.link._writer.segments._segments) == 1
        assert list(child.link._segments_of_peer._mapped) == [0] and count_shared_bytes() == 0
    finally:
        child.end()
    with pytest.raises(LinkClosedError):
        child.link.send(Echo(1, {"a": np.zeros(1 << 20, np.uint8)}))
    assert not child.link._writer.segments._segments


@pytest.mark.parametrize("seed", range(3))
def test_arrays_that_are_kept_are_never_overwritten(child: ChildProcess[Any, Any], seed: int) -> None:
    """However many messages keep a part of theirs, and whoever lets go of it."""
    draw, kept = np.random.default_rng(seed), dict[int, Any]()
    for number in range(120):
        size = int(draw.choice([1 << 16, 1 << 20, 3 << 20]))
        child.link.send(Echo(number, {"a": np.full(size, number, np.uint8), "b": np.full(size, number, np.uint16)}))
        answer = receive(child)
        kept[number] = answer.arrays["a"][size // 2 :], answer.arrays["b"][:-1:7]
        del answer
        while len(kept) > draw.integers(1, 8):
            del kept[int(draw.choice(list(kept)))]
        assert all((array == value).all() for value, arrays in kept.items() for array in arrays), number
        assert child.link._writer.segments.num_used <= MAX_SEGMENTS
    kept.clear()
    child.link.send(Echo(0, {}))
    receive(child)
    assert child.link._writer.segments.num_used == 0 and count_shared_bytes() == 0


def test_a_segment_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="segment 3 of shared memory"):
        SegmentReader().view(3, 10)


@pytest.fixture
def pair() -> Iterator[tuple[Link[Any, Any], Link[Any, Any]]]:
    with linked(Echo, Echo) as pair:
        yield pair


@pytest.mark.parametrize("number", [-1, 0])
def test_a_message_whose_descriptor_is_missing_is_refused_at_once(
    pair: tuple[Link[Any, Any], Link[Any, Any]], number: int
) -> None:
    """Of a segment that is not known yet, and of memory of its own. No other message's descriptor is taken for it."""
    link, other = pair
    place = SHARED.pack(1 << 16, number, True)
    link._outgoing.send_multipart([b"", place])
    assert other.wait(60)
    with pytest.raises(LinkClosedError, match="could not be received"):
        other.receive()


def test_what_comes_in_place_of_a_descriptor_is_refused(pair: tuple[Link[Any, Any], Link[Any, Any]]) -> None:
    link, other = pair
    link._files.send(b"\0")  # the mark, and no descriptor with it
    link._outgoing.send_multipart([b"", SHARED.pack(1 << 16, -1, True)])
    assert other.wait(60)
    with pytest.raises(LinkClosedError, match="in the middle of a message"):
        other.receive()


@pytest.mark.parametrize("num_bytes", [30_000, 1 << 16])
def test_last_words_arrive_with_all_before_them(pair: tuple[Link[Any, Any], Link[Any, Any]], num_bytes: int) -> None:
    """Those that wait for ZeroMQ's thread, and those with large arrays, which wait for the writer's."""
    link, other = pair
    received: list[int] = []

    def read() -> None:
        while len(received) < 48:
            received.append(read_next(other).number)

    for number in range(48):
        link.send(Echo(number, {"a": np.zeros(num_bytes, np.uint8)}))
    reader = threading.Thread(target=read)
    reader.start()
    link.close(delivers=True)
    reader.join(60)
    assert received == list(range(48))


def test_a_forked_process_ends_no_link_of_its_parent(pair: tuple[Link[Any, Any], Link[Any, Any]]) -> None:
    """It has a copy of both ends, which it cannot use. A message of the parent waits meanwhile."""
    link, other = pair
    while not link._writer._is_blocked:
        if not link.num_waiting_bytes:
            link.send(Echo(1, {}))
    if not (pid := os.fork()):
        refused = 1
        try:
            link.close()
            other.close(delivers=True)
            link.send(Echo(1, {}))
        except LinkClosedError:
            refused = 0
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    link.send(Echo(2, {"a": np.zeros(1 << 16, np.uint8)}))
    while read_next(other).number != 2:
        pass


def test_where_the_system_starts_no_thread_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    (folder := choose_folder()).mkdir()
    ours, theirs = socket.socketpair()
    with ours, theirs, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            Link(folder, ours, receives=Echo, is_child=False)
    shutil.rmtree(folder)


def test_many_messages_with_memory_keep_their_order_and_leave_no_files(child: ChildProcess[Any, Any]) -> None:
    child.link.send(Order("facts"))
    before = receive(child)
    ours = len(list(Path("/proc/self/fd").iterdir()))
    child.link.send(Order("flood", 700))  # more than a socket's buffer holds, less than may wait for a slow reader
    for number in range(700):
        answer = receive(child)
        assert answer.number == number and (answer.arrays["large"] == number % 256).all()
    child.link.send(Order("facts"))
    assert receive(child).num_files == before.num_files
    assert len(list(Path("/proc/self/fd").iterdir())) == ours


@pytest.mark.parametrize("value", [np.array([object()]), np.array(["a"]), object(), os.open])
def test_what_is_no_plain_data_is_not_sent(child: ChildProcess[Any, Any], value: Any) -> None:
    with pytest.raises(TypeError, match="cannot cross"):
        child.link.send(Echo(1, {"a": value}))
    child.link.send(Echo(2, {}))
    assert receive(child).number == 2


@pytest.mark.parametrize(
    "payload",
    [
        ["Nothing", 1],
        ["Echo", 1],
        ["Echo", 1, {}, 3],
        ["Echo", "1", {}],
        ["Echo", 1, {"a": 5}],
        {"type": "Echo", "number": 1, "arrays": {}},
        b"\x80",
        ["Echo", 1, {"a": msgspec.msgpack.Ext(3, b"")}],
        ["Echo", 1, {"a": msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("|O", (1,), b"12345678")))}],
        ["Echo", 1, {"a": msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("<f4", (9,), b"1234")))}],
        ["Echo", 1, {"a": msgspec.msgpack.Ext(2, msgspec.msgpack.encode(("<f4", (1,), 0)))}],
    ],
)
def test_what_is_no_message_raises(child: ChildProcess[Any, Any], payload: Any) -> None:
    """Decoding is strict: no kind, field or array is taken that is not expected."""
    with pytest.raises((msgspec.DecodeError, ValueError)):
        child.link._decoder.decode(msgspec.msgpack.encode(payload))


def test_the_child_finds_what_we_find_and_runs_none_of_our_main_module(child: ChildProcess[Any, Any]) -> None:
    child.link.send(Order("facts"))
    facts = receive(child)
    assert isinstance(facts, Facts) and facts.pid == child.pid
    ours = [str(Path(path).absolute()) for path in sys.path]
    assert [path for path in facts.sys_path if path in ours] == list(dict.fromkeys(ours))
    assert "pytest" not in facts.modules and "torch" not in facts.modules


def test_sockets_have_no_names_once_both_ends_are_connected(child: ChildProcess[Any, Any]) -> None:
    assert not child._folder.exists()


def test_the_end_is_found_and_nothing_can_be_sent_any_more() -> None:
    child = start()
    assert child.find_end() is None
    os.kill(child.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while child.find_end() is None and time.monotonic() < deadline_s:
        child.wait(5.0)  # returns when the process ends
    assert child.find_end() == "signal 9"
    with pytest.raises(LinkClosedError):
        for _ in range(1000):
            child.link.send(Echo(1, {"a": np.zeros(1 << 20, np.uint8)}))
    child.end()
    with pytest.raises(LinkClosedError, match="closed"):
        child.link.send(Echo(1, {}))


def test_a_message_for_a_process_that_has_gone_is_refused_at_once() -> None:
    """Also one without arrays: its sender holds what the end of the link waits for."""
    child = start()
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    refused = threading.Event()

    def send() -> None:
        with pytest.raises(LinkClosedError):
            while True:  # the first ones may still go out
                child.link.send(Echo(1, {}))
        refused.set()

    threading.Thread(target=send, daemon=True).start()
    assert refused.wait(MAX_STALL_S / 2)
    child.end()


def test_a_child_that_hangs_is_killed() -> None:
    child = start()
    child.link.send(Order("hang"))
    child.end(0.1)
    assert child.find_end() == "signal 9"
    assert not Path(f"/proc/{child.pid}").exists()


def test_last_words_arrive() -> None:
    child = start()
    child.link.send(Order("exit"))
    assert receive(child).number == -2
    child.end(60)
    assert child.find_end() == "status 0"


def test_a_child_that_cannot_start_leaves_nothing_behind() -> None:
    child: ChildProcess[Any, Any] = ChildProcess("no.such.module", receives=link_child.ToParent)
    deadline_s = time.monotonic() + 60
    while child.find_end() is None and time.monotonic() < deadline_s:
        child.wait(5.0)
    assert child.find_end() == "status 1"
    child.end()
    assert not child._folder.exists()


HELPERS = """
import os, signal, sys, time
import link_child
from link_child import Echo, Order
from seesay.engine.process.launch import ChildProcess

def start():
    child = ChildProcess("link_child", receives=link_child.ToParent)
    while not child.wait(1): pass
    child.link.receive()
    return child
"""


def make_script(body: str) -> str:
    paths = [str(TESTS.parent), str(TESTS)]
    return f"import sys\nsys.path[:0] = {paths!r}\n{HELPERS}\n{textwrap.dedent(body)}"


@contextmanager
def running(body: str, cwd: Path, *, stdin: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run a script, as `python -c` or on standard input, in a session of its own; kill it in the end."""
    arguments = ["-"] if stdin else ["-c", make_script(body)]
    script = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
        start_new_session=True,
    )
    with script:
        try:
            if stdin:
                assert script.stdin is not None
                script.stdin.write(make_script(body))
                script.stdin.close()
            yield script
        finally:
            script.kill()


def wait_for_end(pid: int, timeout_s: float = 60) -> bool:
    """Whether a process that is not ours ends in time. A zombie has ended."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def read_line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("stdin", [True, False])
def test_the_child_ends_with_a_parent_that_is_killed(tmp_path: Path, confirmed: bool, stdin: bool) -> None:
    """Also one whose own code never ends, and while the sockets still have names."""
    body = f"""
    child = start()
    if {confirmed}:
        child.link.send(Order("hang"))
        while child._folder.exists(): time.sleep(0.01)
    print(child.pid, child._folder, flush=True)
    time.sleep(600)
    """
    with running(body, tmp_path, stdin=stdin) as script:
        pid, folder = read_line(script)
        assert Path(folder).exists() is not confirmed
        os.kill(script.pid, signal.SIGKILL)
        assert wait_for_end(int(pid))
        assert not Path(folder).exists()


@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_child_ends_with_its_parent(tmp_path: Path, is_connected: bool, number: signal.Signals) -> None:
    """Also while it imports what it needs, when nothing of its own can notice the end of the parent."""
    body = f"""
    from pathlib import Path

    child = start() if {is_connected} else ChildProcess("link_child", receives=link_child.ToParent)
    while "msgspec" not in Path(f"/proc/{{child.pid}}/maps").read_text(): time.sleep(0.001)
    child.signal(signal.SIGSTOP)
    while Path(f"/proc/{{child.pid}}/stat").read_text().rpartition(")")[2].split()[0] != "T": time.sleep(0.001)
    assert child.wait(0.1) is False, "it had connected already"
    print(child.pid, child._folder, flush=True)
    time.sleep(600)
    """
    with running(body, tmp_path) as script:
        pid, folder = read_line(script)
        assert Path(folder).exists()
        try:
            os.kill(script.pid, number)
            assert wait_for_end(int(pid), 20)
        finally:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        assert not Path(folder).exists()


def test_a_forked_process_may_start_one_and_cannot_use_its_parents(tmp_path: Path) -> None:
    body = """
    from seesay.engine.process.link import LinkClosedError

    mine = start()
    mine.link.send(Echo(3, {}))
    pid = os.fork()
    if pid == 0:
        try:
            mine.link.send(Echo(4, {}))
        except LinkClosedError:
            print("refused", flush=True)
        own = start()
        own.link.send(Echo(5, {}))
        while not own.wait(1): pass
        print(own.link.receive().number, flush=True)
        own.end()
        os._exit(0)
    os.waitpid(pid, 0)
    while not mine.wait(1): pass
    print(mine.link.receive().number, flush=True)
    mine.end()
    """
    with running(body, tmp_path) as script:
        assert script.stdout is not None
        assert script.stdout.read().split() == ["refused", "5", "3"]
        assert script.wait(60) == 0


def test_ctrl_c_goes_to_the_parent_alone(tmp_path: Path) -> None:
    body = """
    child = start()
    child.link.send(Echo(1, {}))
    try:
        print(child.pid, flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        child.link.send(Echo(7, {}))
        numbers = []
        while len(numbers) < 2:
            if child.wait(1): numbers.append(child.link.receive().number)
        print(*numbers, flush=True)
        child.end()
    """
    with running(body, tmp_path) as script:
        [pid] = read_line(script)
        os.killpg(script.pid, signal.SIGINT)  # what a terminal does
        assert read_line(script) == ["1", "7"]
        assert script.wait(60) == 0
        assert wait_for_end(int(pid))
