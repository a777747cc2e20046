"""The frontend processes of a server: each is started, told what changes, and ended."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.link import LinkClosedError
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.connection_counts import ConnectionCounts

logger = logging.getLogger("seesay")

Child = ChildProcess[messages.ToFrontend, messages.ToSupervisor]

_MODULE = "seesay.serving.frontends.process"
_FIRST_DELAY_S, _MAX_DELAY_S = 0.2, 10.0
"""A frontend that ended before it listened is started again after a while, which doubles each time."""


@dataclass(slots=True)
class Slot:
    """One of the frontends: its process, or when to start the next one."""

    index: int
    child: Child | None = None
    is_listening: bool = False
    is_silent: bool = False  # its event loop has not run for `SUSPECT_S`
    delay_s: float = 0.0  # before the next start
    start_at_s: float = 0.0  # by `time.monotonic`

    def delay_start(self) -> None:
        """Start the next process after a while."""
        self.start_at_s = time.monotonic() + self.delay_s
        self.delay_s = min(_MAX_DELAY_S, 2 * self.delay_s or _FIRST_DELAY_S)


class FrontendProcesses:
    """A slot for each frontend.

    start: the message with which a frontend starts, but for its index.
    """

    def __init__(self, start: messages.Start, sockets: Sequence[socket.socket]) -> None:
        """sockets: on which all frontends accept connections."""
        self.start = start
        self.slots = [Slot(index) for index in range(start.num_frontends)]
        self._sockets = list(sockets)
        self._counts, self._counts_memory = ConnectionCounts.make(start.num_frontends)

    def open(self, slot: Slot) -> None:
        """Start a frontend. Raises `OSError` when the system starts no process."""
        shared = [*(sock.fileno() for sock in self._sockets), self._counts_memory]
        slot.child = ChildProcess(_MODULE, receives=messages.ToSupervisor, descriptors=shared)

    def try_open(self, slot: Slot) -> None:
        """Start a frontend again, or leave that for later when the system starts no process."""
        try:
            self.open(slot)
        except OSError as error:
            slot.delay_start()
            logger.error("frontend process %d cannot be started now: %s", slot.index, error)

    def send(self, index: int, message: messages.ToFrontend) -> None:
        """Send a message to a frontend, if there is one."""
        child = self.slots[index].child
        if child is not None:
            with contextlib.suppress(LinkClosedError):  # its end is found out
                child.link.send(message)

    def tell_num_up(self) -> None:
        """Tell all frontends that listen how many do, and are not silent."""
        listening = [slot.index for slot in self.slots if slot.is_listening]
        num_up = sum(not self.slots[index].is_silent for index in listening)
        for index in listening:
            self.send(index, messages.FrontsUp(num_up))

    def signal(self, number: int) -> None:
        """Send a signal to all frontends."""
        for slot in self.slots:
            if slot.child is not None:
                slot.child.signal(number)

    def end(self, slot: Slot) -> None:
        """End a frontend, however it is."""
        assert slot.child is not None
        slot.child.end()
        slot.child, slot.is_listening, slot.is_silent = None, False, False
        self._counts.leave(slot.index)

    def close_sockets(self) -> None:
        """Let no process accept a connection once the last frontend has ended."""
        for sock in self._sockets:
            sock.close()

    def close(self) -> None:
        """End all frontends, and drop what they share."""
        for slot in self.slots:
            if slot.child is not None:
                slot.child.end()
        self._counts.close()
        os.close(self._counts_memory)
