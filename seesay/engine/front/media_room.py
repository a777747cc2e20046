"""Bounds the bytes of media arrays that requests hold between their preparation and the encoder (backpressure)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

MAX_BYTES = 512 << 20


class MediaRoom:
    """Room for the media arrays of submitted requests. Thread-safe.

    Threads that prepare requests wait here, in the order they came, while `max_bytes` are held. A request that is
    larger than that is admitted alone. Arrays count until their item is being encoded or their request has ended,
    whichever is first; both happen without another request being submitted, so no thread waits for ever.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._held: dict[int, dict[bytes, int]] = {}  # request id → bytes by item hash
        self._holders: dict[bytes, set[int]] = {}  # item hash → ids of the requests that hold it
        self._tickets: dict[object, None] = {}  # of threads that wait, the oldest first
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def used_bytes(self) -> int:
        """Bytes that are held now."""
        return self._used_bytes

    def wait(self) -> None:
        """Wait until less than `max_bytes` are held, before a request with media is prepared."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._used_bytes < self._max_bytes)

    def hold(self, request_id: int, sizes: Mapping[bytes, int]) -> None:
        """Wait for room for the arrays of a prepared request, bytes by item hash, and hold it."""
        if not (sizes := {item_hash: size for item_hash, size in sizes.items() if size}):
            return
        num_bytes, ticket = sum(sizes.values()), object()

        def has_room() -> bool:
            is_first = next(iter(self._tickets)) is ticket
            return is_first and (not self._used_bytes or self._used_bytes + num_bytes <= self._max_bytes)

        with self._changed:
            self._tickets[ticket] = None
            try:
                self._changed.wait_for(lambda: self._is_closed or has_room())
            finally:
                del self._tickets[ticket]
                self._changed.notify_all()
            self._used_bytes += num_bytes
            self._held[request_id] = sizes
            for item_hash in sizes:
                self._holders.setdefault(item_hash, set()).add(request_id)

    def note_encoding(self, item_hash: bytes) -> None:
        """Give up the room of an item, which is being encoded."""
        if item_hash not in self._holders:  # most often: nothing to lock for
            return
        with self._changed:
            for request_id in self._holders.pop(item_hash, ()):
                sizes = self._held[request_id]
                self._used_bytes -= sizes.pop(item_hash)
                if not sizes:
                    del self._held[request_id]
            self._changed.notify_all()

    def release(self, request_ids: Iterable[int]) -> None:
        """Give up the room of requests that have ended, or were never submitted."""
        held = [request_id for request_id in request_ids if request_id in self._held]
        if not held:
            return
        with self._changed:
            for request_id in held:
                for item_hash, size in self._held.pop(request_id, {}).items():
                    self._used_bytes -= size
                    holders = self._holders[item_hash]
                    holders.discard(request_id)
                    if not holders:
                        del self._holders[item_hash]
            self._changed.notify_all()

    def close(self) -> None:
        """Let all threads pass."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
