"""Frontends that connect to an engine process, who is let in, and what is left when either end goes. Both ends are in
this process."""

from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from link_child import Echo
from link_pair import read_next

from seesay.engine.process import listener
from seesay.engine.process.link import MAX_STALL_S, MAX_WAITING_BYTES, Limits, Link
from seesay.engine.process.listener import Connection, accept_connection, open_listener

pytestmark = pytest.mark.timeout(60)


class Door:
    """A listener, and what was opened through it."""

    def __init__(self) -> None:
        self.listening, self.address = open_listener()
        self.opened: list[Any] = []

    def connect(self) -> Connection[Any, Any]:
        connection: Connection[Any, Any] = Connection(self.address, receives=Echo)
        self.opened.append(connection.link)
        return connection

    def accept(self) -> tuple[Link[Any, Any], Path] | None:
        accepted = accept_connection(self.listening, receives=Echo)
        if accepted is not None:
            self.opened.append(accepted[0])
        return accepted

    def meet(self) -> tuple[Connection[Any, Any], Link[Any, Any]]:
        connection = self.connect()
        accepted = self.accept()
        assert accepted is not None
        return connection, accepted[0]

    def knock(self, greeting: bytes = b"", *, ends: bool = True) -> socket.socket:
        """Connect without being a frontend."""
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stranger.connect("\0" + self.address)
        stranger.sendall(greeting)
        if ends:
            stranger.shutdown(socket.SHUT_WR)
        self.opened.append(stranger)
        return stranger

    def close(self) -> None:
        self.listening.close()
        for each in self.opened:
            each.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder for temporary files: its path is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def door(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    door = Door()
    yield door
    door.close()


def count_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_closed(stranger: socket.socket) -> bool:
    """Whether the other end is closed."""
    stranger.settimeout(30)
    try:
        return not stranger.recv(1)
    except ConnectionResetError:
        return True


def test_addresses_are_nobody_elses_and_leave_no_file(door: Door) -> None:
    assert door.address.startswith(f"seesay-{os.getpid()}-") and len(door.address.rpartition("-")[2]) == 32
    assert door.listening.getsockname() == b"\0" + door.address.encode()
    other, address = open_listener()
    other.close()
    assert address != door.address and address.rpartition("-")[0] == door.address.rpartition("-")[0]


def test_both_ends_hear_each_other(door: Door) -> None:
    connection = door.connect()
    accepted = door.accept()
    assert accepted is not None
    link, own = accepted
    assert own == connection._folder and stat.S_IMODE(own.stat().st_mode) == 0o700
    connection.link.send(Echo(1, {}))
    assert read_next(link) == Echo(1, {})
    link.send(Echo(2, {}))
    assert connection.wait(60) and connection.link.receive() == Echo(2, {})
    assert connection.pid is None and connection.find_end() is None


def test_a_frontend_that_reads_nothing_is_left_after_a_while(door: Door) -> None:
    _, link = door.meet()
    assert link._writer._limits == Limits(max_stall_s=MAX_STALL_S, max_bytes=MAX_WAITING_BYTES)


def test_a_wait_ends_for_a_descriptor_and_for_the_end(door: Door) -> None:
    connection, link = door.meet()
    assert not connection.wait(0.0)
    read, write = os.pipe()
    os.write(write, b"1")
    assert not connection.wait(60, read)
    os.close(read)
    os.close(write)
    link.close()
    assert not connection.wait(60) and connection.find_end() == "its connection was closed"


def test_a_frontend_that_leaves_leaves_nothing(door: Door, folder: Path) -> None:
    connection, link = door.meet()
    assert len(list(folder.iterdir())) == 1
    connection.end()
    assert not list(folder.iterdir()) and link.is_cut() and connection.link._is_closed
    connection.end()


def test_where_nobody_listens_nothing_is_left(door: Door, folder: Path) -> None:
    door.listening.close()
    before = count_files()
    with pytest.raises(OSError, match="refused"):
        door.connect()
    assert count_files() == before and not list(folder.iterdir())


def test_a_link_that_cannot_be_made_leaves_nothing(door: Door, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise BlockingIOError("no thread")

    monkeypatch.setattr(listener, "Link", refuse)
    before = count_files()
    with pytest.raises(BlockingIOError):
        door.connect()
    assert count_files() == before and not list(folder.iterdir())


@pytest.mark.parametrize("greeting", [b"", b"\5", b"\5\0abcd"])
def test_a_greeting_that_is_cut_short_is_refused(door: Door, greeting: bytes) -> None:
    stranger = door.knock(greeting)
    before = count_files()
    assert door.accept() is None and count_files() == before and is_closed(stranger)


def test_one_that_says_nothing_is_not_waited_for(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_GREETING_S", 0.05)
    stranger = door.knock(b"\5\0abc", ends=False)
    assert door.accept() is None and is_closed(stranger)


def test_another_user_is_refused(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    name = b"/nowhere"
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    stranger = door.knock(struct.pack("<H", len(name)) + name, ends=False)
    before = count_files()
    assert door.accept() is None and count_files() == before and is_closed(stranger)


def test_a_greeting_may_come_in_pieces() -> None:
    pieces, asked = [b"abc", b"d", b"ef"], list[int]()

    class Files:
        def recv(self, size: int) -> bytes:
            asked.append(size)
            return pieces.pop(0) if pieces else b""

    files: Any = Files()
    assert listener._receive(files, 6) == b"abcdef" and asked == [6, 3, 2]
    assert listener._receive(files, 0) == b"" and len(asked) == 3
    with pytest.raises(EOFError):
        listener._receive(files, 1)
