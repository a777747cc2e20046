"""The address at which an engine process takes connections of further frontends.

The owner of the engine processes makes the listener and hands it to one after the other, so that its address outlives
them. The address is of Linux's abstract namespace: no file is left behind. Only processes of the same user are let in.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import struct
from pathlib import Path
from typing import Any, Generic, TypeVar

from seesay.engine.process.link import MAX_STALL_S, MAX_WAITING_BYTES, Limits, Link, choose_folder

S = TypeVar("S")
R = TypeVar("R")

_LENGTH = struct.Struct("<H")
_GREETING_S = 2.0
"""A frontend that connects says at once where its sockets are."""
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_LIMITS = Limits(MAX_STALL_S, MAX_WAITING_BYTES)
"""A frontend that does not read for so many seconds is disconnected."""


def open_listener() -> tuple[socket.socket, str]:
    """Return a listening socket and its address."""
    address = f"seesay-{os.getpid()}-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind("\0" + address)
    listening.listen()
    return listening, address


def accept_connection(listener: socket.socket, *, receives: Any) -> tuple[Link[Any, Any], Path] | None:
    """Take a connection that waits. Returns the link and the folder of its sockets; None for one that is refused."""
    files, _ = listener.accept()
    try:
        credentials = files.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user_id, _ = _CREDENTIALS.unpack(credentials)
        if user_id != os.getuid():
            raise PermissionError(f"user {user_id} is not user {os.getuid()}")
        files.settimeout(_GREETING_S)
        [length] = _LENGTH.unpack(_receive(files, _LENGTH.size))
        folder = Path(os.fsdecode(_receive(files, length)))
        return Link(folder, files, receives=receives, is_child=True, limits=_LIMITS), folder
    except Exception:
        files.close()
        return None


def _receive(files: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = files.recv(size - len(data))
        if not piece:
            raise EOFError("the connection was closed")
        data += piece
    return data


class Connection(Generic[S, R]):
    """A link to an engine process that another process started, in place of a `ChildProcess`."""

    pid = None

    def __init__(self, address: str, *, receives: Any) -> None:
        """Connect. Raises `OSError` if no process listens at the address."""
        self._folder = choose_folder()
        name = os.fsencode(self._folder)
        files = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            files.connect("\0" + address)
            # Before there is a folder: should this process be killed, the other one knows what to remove.
            files.sendall(_LENGTH.pack(len(name)) + name)
            self._folder.mkdir(mode=0o700)
            self.link: Link[S, R] = Link(self._folder, files, receives=receives, is_child=False)
        except BaseException:
            files.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._files = files

    def wait(self, timeout_s: float, *others: int) -> bool:
        """Wait for a message, the end of the process, or one of the descriptors `others`. Returns whether there is a
        message."""
        return self.link.wait(timeout_s, *others, self._files.fileno())

    def find_end(self) -> str | None:
        """Return a text that says that the process has ended; None while it lives."""
        return "its connection was closed" if self.link.is_cut() else None

    def end(self) -> None:
        """Leave. The process goes on."""
        self.link.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder, ignore_errors=True)
