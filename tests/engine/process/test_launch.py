"""Processes of ours that are started: what they are given, how their end is known, and what is left of them."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import link_child
import pytest
import zmq
from link_child import Echo, Order
from link_pair import read_next
from waiting import wait_until

from seesay.engine.process import launch
from seesay.engine.process.launch import ChildProcess, describe_status, give_orders, start_module
from seesay.engine.process.link import LinkClosedError
from seesay.system.log import stderr_descriptor

pytestmark = pytest.mark.timeout(120)
Child = ChildProcess[Any, Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which those of sockets are. It has a short path, and pytest's own is made before."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def child(folder: Path) -> Iterator[Child]:
    child: Child = ChildProcess("link_child", receives=link_child.ToParent)
    yield child
    child.end()


def count_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nobody_else_sees_the_sockets_of_a_process(child: Child, folder: Path) -> None:
    """Nor whoever starts it, once both ends are connected."""
    [sockets] = folder.iterdir()
    assert sockets.stat().st_mode & 0o777 == 0o700
    assert read_next(child.link).number == -1
    child.link.send(Echo(3, {}))
    assert read_next(child.link).number == 3 and not list(folder.iterdir())


def test_a_process_has_a_session_of_its_own(child: Child) -> None:
    """Ctrl-C goes to its parent alone."""
    assert read_next(child.link).number == -1
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


def test_a_process_is_handed_descriptors(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "writes_to_descriptor.py").write_text(
        "import os\n"
        "from seesay.engine.process.parent import Parent\n"
        "for number in Parent(receives=int).descriptors: os.write(number, b'here')\n"
        "os._exit(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reading, writing = os.pipe()
    child: Child = ChildProcess("writes_to_descriptor", receives=int, descriptors=[writing])
    os.close(writing)
    assert os.read(reading, 10) == b"here"
    os.close(reading)
    child.end(60.0)
    assert child.find_end() == "status 3" and not list(folder.iterdir())


def test_the_end_of_a_process_ends_waits_for_it(child: Child) -> None:
    assert read_next(child.link).number == -1
    assert not child.wait(0.0) and child.find_end() is None
    poller = zmq.Poller()
    child.register(poller)
    child.link.send(Echo(1, {}))
    assert poller.poll(60_000) and read_next(child.link).number == 1
    assert not poller.poll(0)
    child.signal(signal.SIGKILL)
    assert poller.poll(60_000)
    while child.find_end() is None:
        assert not child.wait(100.0)
    assert child.find_end() == "signal 9"


def test_others_may_be_waited_for_too(child: Child) -> None:
    assert read_next(child.link).number == -1
    reading, writing = os.pipe()
    os.write(writing, b"x")
    assert not child.wait(100.0, reading)
    os.close(reading)
    os.close(writing)


def test_a_system_without_descriptors_of_processes_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for the end again and again then."""

    def refuse(pid: int) -> int:
        raise OSError(1, "not allowed here")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    child: Child = ChildProcess("link_child", receives=link_child.ToParent)
    poller = zmq.Poller()
    child.register(poller)
    assert child.wait(60.0) and child.link.receive().number == -1
    child.kill()
    wait_until(lambda: child.find_end() == "signal 9")
    child.end()
    monkeypatch.delattr(os, "pidfd_open")
    other: Child = ChildProcess("link_child", receives=link_child.ToParent)
    other.end()


def test_a_process_that_is_killed_leaves_no_folder(child: Child, folder: Path) -> None:
    assert list(folder.iterdir())
    child.kill()
    assert not list(folder.iterdir())
    child.kill()
    wait_until(lambda: child.find_end() is not None)
    assert child.find_end() == "signal 9"


def test_a_process_may_end_by_itself(child: Child) -> None:
    assert read_next(child.link).number == -1
    child.link.send(Order("exit"))
    child.end(60.0)
    assert child.find_end() == "status 0"


def test_nothing_is_left_of_a_process_that_is_ended(folder: Path) -> None:
    """Though it does not end by itself, and its folder is there yet."""
    files = count_files()
    child: Child = ChildProcess("link_child", receives=link_child.ToParent)
    [life] = [child._life]
    assert life is not None and not select.select([life], [], [], 0)[0]
    assert read_next(child.link).number == -1
    child.end(0.1)
    assert child.find_end() == "signal 9" and child._process.stdin is not None and child._process.stdin.closed
    with pytest.raises(LinkClosedError):
        child.link.send(Echo(1, {}))
    assert count_files() == files and not list(folder.iterdir())
    child.end()


def test_nothing_is_left_of_a_process_that_cannot_be_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of it fails."""
    files = count_files()
    with monkeypatch.context() as patch:
        patch.setattr(launch, "python_command", lambda module: (["/no/such/python", module], {}))
        with pytest.raises(FileNotFoundError):
            ChildProcess("link_child", receives=link_child.ToParent)
    assert count_files() == files and not list(folder.iterdir())

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(11, "no more threads")

    with monkeypatch.context() as patch:
        patch.setattr(launch, "Link", refuse)
        with pytest.raises(OSError, match="no more threads"):
            ChildProcess("link_child", receives=link_child.ToParent)
    assert count_files() == files and not list(folder.iterdir())


def test_what_a_process_prints_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is that of the program."""
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: started.append((arguments, options)))
    start_module("a.module", [7])
    [([command], options)] = started
    assert command[-2:] == ["seesay.engine.process.start", "a.module"]
    assert options["pass_fds"] == [7] and options["stdin"] == subprocess.PIPE
    assert options["stdout"] == stderr_descriptor() and options["start_new_session"] is True


def test_a_process_that_has_ended_needs_no_orders() -> None:
    reading, writing = os.pipe()
    process: Any = SimpleNamespace(stdin=os.fdopen(writing, "wb"))
    give_orders(process, {"folder": "a"})
    line = os.read(reading, 1 << 10)
    assert line == f'{{"folder": "a", "parent": {os.getpid()}}}\n'.encode()
    os.close(reading)
    give_orders(process, {"folder": "a"})
    with pytest.raises(BrokenPipeError):
        process.stdin.close()


@pytest.mark.parametrize(("status", "text"), [(0, "status 0"), (1, "status 1"), (-9, "signal 9"), (-1, "signal 1")])
def test_how_a_process_ended_is_said(status: int, text: str) -> None:
    assert describe_status(status) == text
