"""The child's end of a link: connects to the process that leads this one, and ends with the one that started it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
import zmq

from seesay.engine.process.link import MAX_WAITING_BYTES, Limits, Link
from seesay.engine.process.start import signal_when_parent_ends
from seesay.engine.process.tcp_link import TcpLink, connect


class Distant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a leader listens that may be on another machine: for its messages `to` this process, for those that go
    `back`, and for the questions of a `RankStore`. key: its public key. address: this machine's, by which the others
    reach it."""

    to: str
    back: str
    store: str
    key: str
    address: str = ""


def exit_at_once(status: int) -> NoReturn:
    """End the process without taking the interpreter down, which would take longer than a second with all of torch in
    it: the kernel frees what is left."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Parent:
    """The process that started this one with `start_module`. `link` is to be used like any `Link`, and
    `descriptors` are those that were handed on. distant: where the ranks meet whose leader may be on another machine;
    None where the leader has started this process."""

    def __init__(self, *, receives: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ours to end us
        if not (line := sys.stdin.buffer.readline()):
            os._exit(1)  # it has ended before it could give orders
        orders = json.loads(line)
        self._folder = Path(orders["folder"]) if "folder" in orders else None
        self._pid = int(orders["parent"])
        self.descriptors: list[int] = orders.get("descriptors", [])
        self.distant = msgspec.convert(orders["distant"], Distant) if "distant" in orders else None
        threading.Thread(target=self._end_with_it, name="seesay-parent-watch", daemon=True).start()
        # No limit in time: the parent itself may be stopped for long.
        self.link: Link[Any, Any] = self._open(orders.get("files"), receives)

    def confirm(self) -> None:
        """Call once both directions work. Removes the sockets' names, which are not needed any more, and lets the
        kernel end this process with its parent, whatever it is doing then."""
        self._remove_folder()
        signal_when_parent_ends(signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)

    def _end_with_it(self) -> None:
        """End when nobody holds the other end of standard input any more."""
        with contextlib.suppress(OSError):
            while os.read(sys.stdin.fileno(), 1 << 10):
                pass
        self._remove_folder()
        os._exit(1)

    def _open(self, files: int | None, receives: object) -> Link[Any, Any]:
        if (distant := self.distant) is None:
            assert self._folder is not None and files is not None, "orders without a link"
            # No limit in time: the parent itself may be stopped for long.
            limits = Limits(max_bytes=MAX_WAITING_BYTES)
            return Link(self._folder, socket.socket(fileno=files), receives=receives, is_child=True, limits=limits)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        incoming, outgoing = (
            connect(context, kind, address, distant.key.encode())
            for kind, address in ((zmq.PULL, distant.to), (zmq.PUSH, distant.back))
        )
        # It has what ranks use of a link.
        return cast("Link[Any, Any]", TcpLink(incoming, outgoing, receives=receives))

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
