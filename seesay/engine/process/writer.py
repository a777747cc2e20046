"""Writes the messages of one end of a link in their order, so that no sender ever waits for the other process."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import zmq

from seesay.engine.process.arrays import ArrayWriter
from seesay.engine.process.segments import SegmentWriter
from seesay.engine.process.waker import Waker

FD_MARK = b"\0"
"""The byte that carries a descriptor."""
SHARED = struct.Struct("<Qq?")
"""Where the large arrays of a message are: their bytes, the number of the segment, and whether a descriptor came."""
OWN_MEMORY = -1

_OVERHEAD_BYTES = 512
"""Memory of a message that waits, beside its content."""

Done = Callable[[OSError | None], None]
"""Called once with None when a message was written, or with why there was no memory for its arrays."""


class LinkClosedError(Exception):
    """The other process has gone, or takes no messages any more."""


class Limits(NamedTuple):
    """A peer is lost that takes nothing for `max_stall_s` (None: it may take as long as it likes) while something
    waits for it, or that takes nothing now although more than `max_bytes` wait for it."""

    max_stall_s: float | None = None
    max_bytes: int | None = None


class _Message(NamedTuple):
    payload: bytes
    arrays: ArrayWriter
    done: Done | None

    @property
    def num_bytes(self) -> int:
        return _OVERHEAD_BYTES + len(self.payload) + self.arrays.num_shared_bytes


class Writer:
    """Owns `outgoing` and its end of `files`' sending direction. `put` may be called from any thread.

    A message without large arrays is sent by its sender's thread while nothing waits. Everything else waits for the
    writer's own thread, which copies arrays to shared memory and waits for the peer. The arrays of a message are
    referred to until it is written, so nobody may change them.
    """

    def __init__(self, outgoing: zmq.Socket[bytes], files: socket.socket, limits: Limits) -> None:
        """Raises `OSError` where the system starts no thread."""
        self.segments = SegmentWriter()
        self._outgoing = outgoing
        self._files = files
        self._limits = limits
        self._changed = threading.Condition()  # guards what follows
        self._waiting: deque[_Message] = deque()
        self._num_bytes = 0  # of the messages that wait, and of the one that is being written
        self._is_writing = False  # the thread uses the sockets
        self._is_blocked = False  # it waits for the peer
        self._error: LinkClosedError | None = None
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="seesay-link-writer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._waker.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def is_broken(self) -> bool:
        """Whether the peer takes no messages any more, or the writer is closed."""
        return self._error is not None

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes of the messages that are not written."""
        return self._num_bytes

    def put(self, payload: bytes, arrays: ArrayWriter, done: Done | None) -> None:
        """Queue a message behind earlier ones. Never waits for the peer. Raises `LinkClosedError`; a
        message that is dropped later, because the peer is lost, is not reported."""
        message = _Message(payload, arrays, done)
        with self._changed:
            if self._error is not None:
                raise LinkClosedError(str(self._error)) from self._error
            max_bytes = self._limits.max_bytes
            if self._is_blocked and max_bytes is not None and self._num_bytes > max_bytes:
                raise self._lose(f"it takes no messages, and {self._num_bytes} bytes wait for it")
            if not self._try_write_now(message):
                self._waiting.append(message)
                self._num_bytes += message.num_bytes
                self._changed.notify_all()
                return
        if done is not None:
            done(None)

    def _try_write_now(self, message: _Message) -> bool:
        """Write a message without large arrays, if nothing is before it and the peer takes it at once."""
        if self._waiting or self._is_writing or message.arrays.num_shared_bytes:
            return False
        try:
            self._outgoing.send(message.payload, zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise self._lose(f"a message could not be sent: {error}") from error
        return True

    def _lose(self, reason: str) -> LinkClosedError:
        """Drop what waits: the peer is lost. Returns the error to raise."""
        if self._error is None:
            self._error = LinkClosedError(reason)
        self._waiting.clear()
        self._num_bytes = 0
        self._waker.wake()
        self._changed.notify_all()
        return self._error

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (message := self._take()) is not None:
            try:
                failure = self._write(message)
            except Exception as error:
                with self._changed:
                    self._lose(f"a message could not be sent: {error}")
                return
            with self._changed:
                self._is_writing = False
                self._num_bytes = max(0, self._num_bytes - message.num_bytes)
                self._changed.notify_all()
            if message.done is not None:
                message.done(failure)
            del message  # its arrays are not to live until the next one comes

    def _take(self) -> _Message | None:
        """Wait for a message to write; None when the writer has failed or is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error)
            if self._error is not None:
                return None
            self._is_writing = True
            return self._waiting.popleft()

    def _write(self, message: _Message) -> OSError | None:
        """Write a message. Returns why there was no memory for its arrays; raises what ends the link."""
        parts, descriptor = [message.payload], None
        if num_bytes := message.arrays.num_shared_bytes:
            try:
                written = self.segments.write(message.arrays.pieces, num_bytes)
                number, descriptor = (OWN_MEMORY, message.arrays.share()) if written is None else written
            except OSError as error:
                if message.done is None:
                    raise
                return error
            parts.append(SHARED.pack(num_bytes, number, descriptor is not None))
        deadline_s = None if self._limits.max_stall_s is None else time.monotonic() + self._limits.max_stall_s
        try:
            if descriptor is not None:  # it goes before its message, in the same order for all
                self._send(lambda: socket.send_fds(self._files, [FD_MARK], [descriptor]), self._files, deadline_s)
            self._send(lambda: self._outgoing.send_multipart(parts, zmq.NOBLOCK), self._outgoing, deadline_s)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        return None

    def _send(
        self, send: Callable[[], object], end: socket.socket | zmq.Socket[bytes], deadline_s: float | None
    ) -> None:
        """Call `send` until the peer takes it."""
        while True:
            try:
                send()
            except (zmq.Again, BlockingIOError):
                self._wait_for(end, deadline_s)
            else:
                return

    def _wait_for(self, end: socket.socket | zmq.Socket[bytes], deadline_s: float | None) -> None:
        """Wait until the peer takes something from `end`. The end that is bound has nobody to send to once the other
        one has gone: that is an error."""
        files, waker = self._files.fileno(), self._waker.fileno()
        poller = zmq.Poller()
        poller.register(waker, zmq.POLLIN)
        poller.register(files, zmq.POLLERR | (zmq.POLLOUT if end is self._files else 0))  # an error: it is cut
        if isinstance(end, zmq.Socket):
            poller.register(end, zmq.POLLOUT)
        self._is_blocked = True
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        ready = dict(poller.poll(None if left_s is None else int(1000 * left_s) + 1))
        self._is_blocked = False
        if waker in ready:
            raise LinkClosedError("the link is closed")
        if ready.get(files, 0) & zmq.POLLERR:
            raise LinkClosedError("the other process has gone")
        if not ready:
            raise LinkClosedError(f"it has taken no message for {self._limits.max_stall_s:g} s")

    def close(self, deliver_s: float = 0.0) -> None:
        """Let what waits go out for `deliver_s` at most, drop the rest, and end the thread. The sockets are not used
        any more then; they are the caller's to close."""
        with self._changed:
            if self._error is None and deliver_s:
                self._changed.wait_for(lambda: self._error or not (self._waiting or self._is_writing), deliver_s)
            self._lose("the link is closed")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._waker.close()
        with contextlib.suppress(OSError):
            self.segments.close()
