"""Messages between two processes: MessagePack over ZeroMQ, large arrays in shared memory beside it.

Nothing is pickled. A message is one of a fixed union of types, and whatever else arrives raises. Knows nothing about
engines.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from seesay.engine.process.arrays import ArrayReader, ArrayWriter, Buffer, map_shared
from seesay.engine.process.segments import SegmentReader
from seesay.engine.process.writer import FD_MARK, OWN_MEMORY, SHARED, Done, Limits, LinkClosedError, Writer

__all__ = ["Limits", "Link", "LinkClosedError", "choose_folder"]

S = TypeVar("S")
R = TypeVar("R")

MAX_STALL_S = 30.0
"""A process that accepts nothing for so many seconds is treated as dead: see `Limits`."""
MAX_WAITING_BYTES = 256 << 20
"""More than this does not wait for a process that reads no messages."""
_LIMITS = Limits(max_stall_s=MAX_STALL_S)
_MAX_PARENT_CHARS = 70
"""Longest parent of the folder of the sockets: the path of a Unix socket has at most 107 characters."""
_MAX_MESSAGES = 64
"""Messages that ZeroMQ holds for a peer that does not read, on either side; further ones wait in the `Writer`."""
_LAST_WORDS_S = 2.0
_FLUSH_S = 0.1
_RECONNECT_MS = 10
"""The sockets may be made a moment after their names are known."""


def choose_folder() -> Path:
    """Return the path of a new folder for the sockets of a link, which the caller makes."""
    parent = tempfile.gettempdir()
    return Path("/tmp" if len(parent) > _MAX_PARENT_CHARS else parent, f"seesay-{secrets.token_hex(8)}")


class Link(Generic[S, R]):
    """One end of a link: sends messages of the type S, receives those of the type (or union) R.

    `send` may be called from any thread, `receive` from one at a time. The two ends share a folder with the sockets,
    for as long as it takes to connect, and `files`, the ends of a socket pair that carries descriptors.
    """

    def __init__(
        self,
        folder: Path,
        files: socket.socket,
        *,
        receives: Any,
        is_child: bool,
        limits: Limits = _LIMITS,
    ) -> None:
        """limits: when the peer is lost that does not read. Raises `OSError` where the system starts no thread."""
        self._reader = ArrayReader()
        self._decoder = msgspec.msgpack.Decoder(receives, ext_hook=self._reader.extension_hook, dec_hook=_keep)
        self._segments_of_peer = SegmentReader()
        self._files = files
        self._files.setblocking(False)
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self._is_closed = False
        self._process_id = os.getpid()
        try:
            self._outgoing = _open(self._context, zmq.PUSH, folder, is_child=is_child)
            self._incoming = _open(self._context, zmq.PULL, folder, is_child=is_child)
            self._writer = Writer(self._outgoing, files, limits)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def send(self, message: S, done: Done | None = None) -> None:
        """Send a message, without waiting for the other process. Raises `LinkClosedError`, `TypeError` for what cannot
        be sent.

        `done(None)` is called when the message is written, in this thread or the writer's; `done(error)` when there is
        no memory for its arrays, which without `done` ends the link. A message whose peer is lost is not reported.
        """
        if self._is_closed or self._process_id != os.getpid():
            raise LinkClosedError("the link is closed")
        arrays = ArrayWriter()
        payload = msgspec.msgpack.Encoder(enc_hook=arrays.encode_hook).encode(message)
        self._writer.put(payload, arrays, done)

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._writer.is_broken

    def flush(self, timeout_s: float) -> None:
        """Wait until what was sent is on its way to the other process, so that this one may end at once."""
        until_s = time.monotonic() + timeout_s
        while self._writer.num_waiting_bytes and time.monotonic() < until_s:
            time.sleep(_FLUSH_S)
        time.sleep(_FLUSH_S)  # ZeroMQ's own thread writes to the socket

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes of messages that wait for the other process to read."""
        return self._writer.num_waiting_bytes

    def wait(self, timeout_s: float | None, *others: int) -> bool:
        """Wait for a message, or until one of the descriptors `others` can be read. Returns whether there is one."""
        poller = zmq.Poller()
        poller.register(self._incoming, zmq.POLLIN)
        for descriptor in others:
            poller.register(descriptor, zmq.POLLIN)
        ready = dict(poller.poll(None if timeout_s is None else max(0, int(1000 * timeout_s))))
        return self._incoming in ready

    def register(self, poller: zmq.Poller) -> None:
        """Let `poller` wait for messages, and for the end of the other process."""
        poller.register(self._incoming, zmq.POLLIN)
        poller.register(self._files.fileno(), zmq.POLLIN)

    def has_message(self) -> bool:
        """Whether `receive` has something to return."""
        return bool(self._incoming.poll(0))

    def is_cut(self) -> bool:
        """Whether the other process has closed its end, as it does however it ends."""
        try:
            is_readable = _is_readable(self._files)
            return is_readable and not self._files.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def receive(self) -> R:
        """Return the next message; call it when `wait` reports one. Raises `LinkClosedError` when it is cut
        short, `msgspec.DecodeError` for an unknown kind of message."""
        payload, *places = self._incoming.recv_multipart(zmq.NOBLOCK)
        with self._reader.reading(self._find_shared(places[0]) if places else None):
            message: R = self._decoder.decode(payload)
        return message

    def _find_shared(self, place: bytes) -> Buffer:
        """Return the large arrays of a message."""
        num_bytes, number, has_descriptor = SHARED.unpack(place)
        if number == OWN_MEMORY:
            return map_shared(_receive_descriptor(self._files), num_bytes)
        if has_descriptor:
            self._segments_of_peer.add(number, _receive_descriptor(self._files))
        return self._segments_of_peer.view(number, num_bytes)

    def close(self, *, delivers: bool = False) -> None:
        """End the link; with `delivers`, what was sent goes out first, for a moment at most. A peer that has left more
        than `_MAX_MESSAGES` unread may miss the last ones: ZeroMQ drops what the system holds for it."""
        if self._process_id != os.getpid():
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._writer.close(_LAST_WORDS_S if delivers else 0.0)
        self._incoming.close(linger=0)
        self._outgoing.close(linger=int(1000 * _LAST_WORDS_S) if delivers else 0)
        self._context.term()
        self._segments_of_peer.close()
        with contextlib.suppress(OSError):
            self._files.close()


def receive_next(link: Link[S, R]) -> R:
    """Wait for the next message, and return it. Raises as `Link.receive` does."""
    while not link.wait(None):
        pass
    return link.receive()


def _open(context: zmq.Context[zmq.Socket[bytes]], kind: int, folder: Path, *, is_child: bool) -> zmq.Socket[bytes]:
    end = context.socket(kind)
    end.setsockopt(zmq.SNDHWM, _MAX_MESSAGES)
    end.setsockopt(zmq.RCVHWM, _MAX_MESSAGES)
    end.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    to_child = (kind == zmq.PUSH) != is_child
    address = f"ipc://{folder}/{'to' if to_child else 'from'}"
    if is_child:
        end.connect(address)
    else:
        end.bind(address)
    return end


def _receive_descriptor(files: socket.socket) -> int:
    """Return the next descriptor, which came before its message: there is nothing to wait for."""
    try:
        mark, descriptors, _, _ = socket.recv_fds(files, len(FD_MARK), 1)
    except OSError as error:
        raise LinkClosedError(f"shared memory could not be received: {error}") from error
    if mark != FD_MARK or len(descriptors) != 1:
        raise LinkClosedError("the other process ended in the middle of a message")
    return descriptors[0]


def _keep(kind: Any, value: Any) -> Any:
    """msgspec checks that an array is one where it is expected; there is nothing to convert."""
    del kind
    return value


def _is_readable(files: socket.socket) -> bool:
    poll = select.poll()  # unlike `select`, it takes descriptors of any number
    poll.register(files, select.POLLIN)
    return bool(poll.poll(0))
