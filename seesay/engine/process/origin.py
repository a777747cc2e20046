"""Where a core's process comes from: this process starts it, or joins that of another one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import msgspec

from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds
from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.listener import Connection

Child = ChildProcess[kinds.ToCore, kinds.ToFrontend] | Connection[kinds.ToCore, kinds.ToFrontend]


class Origin(Protocol):
    """`is_owner`: whether this process starts it, ends it and starts it again. Others ask its owner what sleeps."""

    is_owner: bool

    def open(self) -> Child:
        """Start the process, or connect to it. Raises `OSError`."""
        ...

    def answer_hello(self, status: ModelStatus) -> kinds.Start | kinds.Join:
        """Return the first message. `status` is that of the process before."""
        ...

    def read_status(self) -> ModelStatus | None:
        """Return the status that the owner knows; None when it is not known, or this is the owner."""
        ...


class OwnProcess:
    """An `Origin`: a process of this one, which runs `module`. Frontends that join come in by `listener`."""

    is_owner = True
    module = "seesay.engine.process.child"

    def __init__(self, start: kinds.Start, listener: socket.socket | None) -> None:
        self._start = start
        self._listener = listener

    def open(self) -> Child:
        listeners = () if self._listener is None else (self._listener.fileno(),)
        return ChildProcess(self.module, receives=kinds.ToFrontend, descriptors=listeners)

    def answer_hello(self, status: ModelStatus) -> kinds.Start:
        """Return what to load, with the weights that the process before had."""
        return msgspec.structs.replace(self._start, status=replace(status, asleep=(), level=0))

    def read_status(self) -> None:
        return None


MakeOrigin = Callable[[kinds.Start, socket.socket | None], Origin]
"""Makes an `Origin` of what the process is to load and the listener for others, as `OwnProcess` does."""


class JoinedProcess:
    """An `Origin`: the process behind the listener at `address`. `read_status` asks its owner for the status."""

    is_owner = False

    def __init__(self, address: str, read_status: Callable[[], ModelStatus | None] | None) -> None:
        self._address = address
        self._read_status = read_status

    def open(self) -> Child:
        return Connection(self._address, receives=kinds.ToFrontend)

    def answer_hello(self, status: ModelStatus) -> kinds.Join:
        del status
        return kinds.Join()

    def read_status(self) -> ModelStatus | None:
        return None if self._read_status is None else self._read_status()
