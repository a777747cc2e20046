"""Shared memory that both processes keep, for the large arrays of one message after another.

Fresh memory costs a page fault for every 4 kB in both processes, which takes longer than the copies. The first byte of
a segment says whether it is in use: the sender sets it, and the receiver clears it once the last array in it is gone.
Nothing waits: if all segments are in use, a message has memory of its own (`arrays`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seesay.engine.process.arrays import Buffer, Piece, make_file, map_shared

SEGMENT_BYTES = 16 << 20
"""Size of a segment. Pages that were never written take no memory."""
MAX_SEGMENTS = 4

_DATA_START = 64
_FREE, _USED = 0, 1


class Written(NamedTuple):
    """Where arrays were written: the number of the segment, and its file, the caller's to close, if the receiver does
    not know it yet."""

    number: int
    new_descriptor: int | None


class SegmentWriter:
    """The sender's segments. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[Buffer] = []
        self._is_closed = False

    @property
    def num_used(self) -> int:
        """Segments in which an array of a message still is."""
        return sum(segment[0] for segment in self._segments)

    def write(self, pieces: Sequence[Piece], num_bytes: int) -> Written | None:
        """Write the arrays of a message, `num_bytes` in all. Returns None where no segment has room for them. Raises
        `OSError` without memory."""
        if num_bytes > SEGMENT_BYTES - _DATA_START:
            return None
        with self._lock:
            written = None if self._is_closed else self._take_free() or self._make_new()
            if written is None:
                return None
            segment = np.frombuffer(memoryview(self._segments[written.number]), np.uint8)
        for start, array in pieces:
            start += _DATA_START
            room = segment[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            np.copyto(room, array)  # without the GIL
        return written

    def _take_free(self) -> Written | None:
        for number, segment in enumerate(self._segments):
            if segment[0] == _FREE:
                segment[0] = _USED
                return Written(number, None)
        return None

    def _make_new(self) -> Written | None:
        if len(self._segments) == MAX_SEGMENTS:
            return None
        descriptor = make_file("seesay-kept")
        try:
            os.ftruncate(descriptor, SEGMENT_BYTES)
            segment = map_shared(os.dup(descriptor), SEGMENT_BYTES)
        except BaseException:
            os.close(descriptor)
            raise
        segment[0] = _USED
        self._segments.append(segment)
        return Written(len(self._segments) - 1, descriptor)

    def close(self) -> None:
        """Let go of all segments. Nothing is written any more."""
        with self._lock:
            self._is_closed = True
            self._segments.clear()


class SegmentReader:
    """The receiver's segments, by their numbers."""

    def __init__(self) -> None:
        self._mapped: dict[int, Buffer] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Map a new segment, and close its descriptor."""
        self._mapped[number] = map_shared(descriptor, SEGMENT_BYTES)

    def view(self, number: int, num_bytes: int) -> Buffer:
        """Return the arrays of a message. The segment is free again when nothing refers to them. Raises `ValueError`
        for a segment that is not known, or too small."""
        segment = self._mapped.get(number)
        if segment is None or not 0 <= num_bytes <= SEGMENT_BYTES - _DATA_START:
            raise ValueError(f"segment {number} of shared memory has no {num_bytes} bytes for a message")
        view = (ctypes.c_ubyte * num_bytes).from_buffer(segment, _DATA_START)
        weakref.finalize(view, _release, segment).atexit = False
        return view

    def close(self) -> None:
        """Let go of all segments. They stay mapped while arrays in them are used."""
        self._mapped.clear()


def _release(segment: Buffer) -> None:
    segment[0] = _FREE
