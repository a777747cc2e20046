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
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from seesay.engine.process.arrays import ArrayReader, ArrayWriter, Buffer, map_shared
from seesay.engine.process.segments import SegmentReader, SegmentWriter

S = TypeVar("S")
R = TypeVar("R")

MAX_SEND_S = 30.0
"""A peer that takes nothing for so long is gone: see `LinkClosedError`."""
_MAX_PARENT_CHARS = 70
"""Longest parent of the folder of the sockets: the path of a Unix socket has at most 107 characters."""
_FD_MARK = b"\0"
_SHARED = struct.Struct("<Qq?")
"""Where the large arrays of a message are: their bytes, the number of the segment, and whether a descriptor came."""
_OWN_MEMORY = -1
_LAST_WORDS_MS = 2000
_RECONNECT_MS = 10
"""The sockets may be made a moment after their names are known."""


def choose_folder() -> Path:
    """Return the path of a new folder for the sockets of a link, which the caller makes."""
    parent = tempfile.gettempdir()
    return Path("/tmp" if len(parent) > _MAX_PARENT_CHARS else parent, f"seesay-{secrets.token_hex(8)}")


class LinkClosedError(Exception):
    """The other process has gone, or takes no messages any more."""


class Link(Generic[S, R]):
    """One end of a link: sends messages of the type S, receives those of the type (or union) R.

    `send` may be called from any thread, `receive` from one at a time. The two ends share a folder with the sockets,
    for as long as it takes to connect, and `files`, the ends of a socket pair that carries descriptors.
    """

    def __init__(
        self, folder: Path, files: socket.socket, *, receives: Any, is_child: bool, max_send_s: float = MAX_SEND_S
    ) -> None:
        self._reader = ArrayReader()
        self._decoder = msgspec.msgpack.Decoder(receives, ext_hook=self._reader.extension_hook, dec_hook=_keep)
        self._segments, self._segments_of_peer = SegmentWriter(), SegmentReader()
        self._files = files
        self._files.settimeout(max_send_s)
        self._max_send_s = max_send_s
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self._is_closed = False
        self._process_id = os.getpid()
        try:
            self._outgoing = self._open(zmq.PUSH, folder, is_child)
            self._incoming = self._open(zmq.PULL, folder, is_child)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def _open(self, kind: int, folder: Path, is_child: bool) -> zmq.Socket[bytes]:
        end = self._context.socket(kind)
        end.setsockopt(zmq.SNDHWM, 0)
        end.setsockopt(zmq.RCVHWM, 0)
        end.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        to_child = (kind == zmq.PUSH) != is_child
        address = f"ipc://{folder}/{'to' if to_child else 'from'}"
        if is_child:
            end.connect(address)
        else:
            end.bind(address)
        return end

    def send(self, message: S) -> None:
        """Send a message. Raises `LinkClosedError`, `TypeError` for what cannot be sent, `OSError` without memory."""
        writer = ArrayWriter()
        parts = [msgspec.msgpack.Encoder(enc_hook=writer.encode_hook).encode(message)]
        descriptor: int | None = None
        if writer.num_shared_bytes:
            self._check_open()
            written = self._segments.write(writer.pieces, writer.num_shared_bytes)
            number, descriptor = (_OWN_MEMORY, writer.share()) if written is None else written
            parts.append(_SHARED.pack(writer.num_shared_bytes, number, descriptor is not None))
        try:
            # The descriptor goes before its message, in the same order for all threads.
            with self._lock:
                self._check_open()
                if descriptor is not None:
                    socket.send_fds(self._files, [_FD_MARK], [descriptor])
                self._send_parts(parts)
        except (OSError, zmq.ZMQError) as error:
            raise LinkClosedError(f"a message could not be sent: {error}") from error
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _send_parts(self, parts: list[bytes]) -> None:
        """Send a message. The end that is bound has nobody to send to once the other one has gone: that is an error."""
        try:
            self._outgoing.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            poller = zmq.Poller()
            poller.register(self._outgoing, zmq.POLLOUT)
            poller.register(self._files.fileno(), zmq.POLLERR)  # it is cut
            if self._outgoing not in dict(poller.poll(int(1000 * self._max_send_s))):
                raise
            self._outgoing.send_multipart(parts, zmq.NOBLOCK)

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
        """Return the next message; call it when `wait` says that there is one. Raises `LinkClosedError` when it is cut
        short, `msgspec.DecodeError` for an unknown kind of message."""
        payload, *places = self._incoming.recv_multipart(zmq.NOBLOCK)
        with self._reader.reading(self._find_shared(places[0]) if places else None):
            message: R = self._decoder.decode(payload)
        return message

    def _find_shared(self, place: bytes) -> Buffer:
        """Return the large arrays of a message."""
        num_bytes, number, has_descriptor = _SHARED.unpack(place)
        if number == _OWN_MEMORY:
            return map_shared(self._receive_descriptor(), num_bytes)
        if has_descriptor:
            self._segments_of_peer.add(number, self._receive_descriptor())
        return self._segments_of_peer.view(number, num_bytes)

    def _receive_descriptor(self) -> int:
        try:
            mark, descriptors, _, _ = socket.recv_fds(self._files, len(_FD_MARK), 1)
        except OSError as error:
            raise LinkClosedError(f"shared memory could not be received: {error}") from error
        if mark != _FD_MARK or len(descriptors) != 1:
            raise LinkClosedError("the other process ended in the middle of a message")
        return descriptors[0]

    def _check_open(self) -> None:
        if self._is_closed or self._process_id != os.getpid():
            raise LinkClosedError("the link is closed")

    def close(self, *, delivers: bool = False) -> None:
        """End the link; with `delivers`, what was sent goes out first, for a moment at most."""
        if self._process_id != os.getpid():
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._incoming.close(linger=0)
            self._outgoing.close(linger=_LAST_WORDS_MS if delivers else 0)
        self._context.term()
        self._segments.close()
        self._segments_of_peer.close()
        with contextlib.suppress(OSError):
            self._files.close()


def _keep(kind: Any, value: Any) -> Any:
    """msgspec checks that an array is one where it is expected; there is nothing to convert."""
    del kind
    return value


def _is_readable(files: socket.socket) -> bool:
    poll = select.poll()  # unlike `select`, it takes descriptors of any number
    poll.register(files, select.POLLIN)
    return bool(poll.poll(0))
