"""The child's end of a link: its orders, and the end of whoever gave them.

The child is this process, and only notes that it would end. tests/engine/test_link.py has real ones.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import zmq
from link_child import Echo
from link_pair import read_next

from seesay.engine.process import parent as module
from seesay.engine.process.link import MAX_WAITING_BYTES, Limits, Link, choose_folder
from seesay.engine.process.parent import Distant, Parent, exit_at_once

pytestmark = pytest.mark.timeout(60)


class EndedError(Exception):
    """In place of the end of the process."""


class Starter:
    """The process that gave the orders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = choose_folder()
        self.folder.mkdir()
        ours, theirs = socket.socketpair()
        self.near: Link[Any, Any] = Link(self.folder, ours, receives=Echo, is_child=False)
        self.orders: dict[str, Any] = {
            "folder": str(self.folder), "files": theirs.detach(), "descriptors": [5], "parent": os.getppid()
        }  # fmt: skip
        self.ended: SimpleQueue[int] = SimpleQueue()
        self.signals: list[int] = []
        read, self._write = os.pipe()
        reader = os.fdopen(read, "rb", buffering=0)
        self._opened: list[Any] = [self.near, reader]
        stdin: Any = io.TextIOWrapper(io.BufferedReader(reader))
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(os, "_exit", self.ended.put)
        monkeypatch.setattr(module, "signal_when_parent_ends", self.signals.append)

    def start(self) -> Parent:
        os.write(self._write, json.dumps(self.orders).encode() + b"\n")
        parent = Parent(receives=Echo)
        self._opened.append(parent.link)
        return parent

    def end(self) -> int:
        """End; the status with which the child ends."""
        os.close(self._write)
        self._write = -1
        return self.ended.get(timeout=30)

    def close(self) -> None:
        if self._write >= 0:
            self.end()
        for each in self._opened:
            each.close()


@pytest.fixture
def starter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Starter]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handler = signal.getsignal(signal.SIGINT)
    starter = Starter(monkeypatch)
    yield starter
    signal.signal(signal.SIGINT, handler)
    starter.close()


def test_orders_say_where_the_link_is(starter: Starter) -> None:
    parent = starter.start()
    parent.link.send(Echo(1, {}))
    assert read_next(starter.near) == Echo(1, {})
    starter.near.send(Echo(2, {}))
    assert read_next(parent.link) == Echo(2, {})
    assert parent.descriptors == [5] and parent.distant is None and starter.folder.exists()
    assert parent.link._writer._limits == Limits(max_bytes=MAX_WAITING_BYTES)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_link_that_works_needs_no_names(starter: Starter) -> None:
    parent = starter.start()
    parent.confirm()
    assert not starter.folder.exists() and starter.signals == [signal.SIGKILL] and starter.ended.empty()


def test_a_child_whose_parent_has_gone_meanwhile_ends(starter: Starter) -> None:
    starter.orders["parent"] = -1
    starter.start().confirm()
    assert starter.ended.get(timeout=30) == 1


def test_a_child_ends_with_its_parent_and_leaves_no_folder(starter: Starter) -> None:
    starter.start()
    assert starter.ended.empty() and starter.end() == 1 and not starter.folder.exists()


def test_orders_may_hand_on_nothing(starter: Starter) -> None:
    del starter.orders["descriptors"]
    assert starter.start().descriptors == []


def test_a_child_without_orders_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise EndedError(status)

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(EndedError, match="1"):
        Parent(receives=Echo)
    signal.signal(signal.SIGINT, handler)


def test_a_leader_may_be_on_another_machine(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []

    def connect(context: Any, kind: int, address: str, key: bytes) -> str:
        connected.append((kind, address, key))
        return address

    links: list[Any] = []

    def join(*ends: Any, receives: Any) -> Any:
        links.append((*ends, receives))
        return starter.near

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "TcpLink", join)
    os.close(starter.orders.pop("files"))
    starter.orders["distant"] = {"to": "t", "back": "b", "store": "s", "key": "k"}
    parent = starter.start()
    assert parent.distant == Distant("t", "b", "s", "k")
    assert connected == [(zmq.PULL, "t", b"k"), (zmq.PUSH, "b", b"k")]
    assert links == [("t", "b", Echo)]


def test_what_was_printed_goes_out_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(sys, "stdout", Flushed(done, "out"))
    monkeypatch.setattr(sys, "stderr", Flushed(done, "err"))
    monkeypatch.setattr(os, "_exit", done.append)
    end: Any = exit_at_once  # here it returns
    end(3)
    monkeypatch.undo()
    assert done == ["out", "err", 3]


class Flushed:
    def __init__(self, done: list[Any], name: str) -> None:
        self._done, self._name = done, name

    def flush(self) -> None:
        self._done.append(self._name)
