"""Admission to decoding: bounds the pixels that are decoded at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class PixelGate:
    """Admits threads in the order they came, as long as the pixels that they decode fit into `capacity` together. An
    item larger than that is decoded alone. So memory does not grow with the number of large pictures sent at once."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def passing(self, num_pixels: int | None) -> Iterator[None]:
        """Wait for room for `num_pixels` (None: for the whole capacity), and hold it until the block ends."""
        num_pixels = self._capacity if num_pixels is None else min(num_pixels, self._capacity)
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._used + num_pixels <= self._capacity)
            self._waiting.popleft()
            self._used += num_pixels
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= num_pixels
                self._changed.notify_all()
