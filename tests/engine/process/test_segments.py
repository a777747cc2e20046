"""Segments of shared memory: which of them a message gets, when it is free again, and what is refused. Both ends are in
this process. tests/engine/test_link.py has two processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from seesay.engine.process import segments
from seesay.engine.process.arrays import map_shared
from seesay.engine.process.segments import MAX_SEGMENTS, SEGMENT_BYTES, SegmentReader, SegmentWriter, Written

ROOM = SEGMENT_BYTES - 64
"""Bytes for the arrays of a message."""


class Ends:
    """Both ends."""

    def __init__(self) -> None:
        self.writer, self.reader = SegmentWriter(), SegmentReader()

    def send(self, *values: npt.NDArray[Any], num_bytes: int | None = None) -> Any:
        """Return what was written and the view of the reader; None where no segment has room."""
        pieces, start = [], 0
        for value in values:
            pieces.append((start, value))
            start += value.nbytes
        size = start if num_bytes is None else num_bytes
        written = self.writer.write(pieces, size)
        if written is None:
            return None
        if written.new_descriptor is not None:
            self.reader.add(written.number, written.new_descriptor)
        return written, self.reader.view(written.number, size)

    def number(self) -> int:
        """Send a byte; the number of its segment, which is free again."""
        written, _ = self.send(np.ones(1, np.uint8))
        return int(written.number)


@pytest.fixture
def ends() -> Ends:
    return Ends()


def count_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:seesay-kept")


def count_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_arrays_are_read_where_they_were_written(ends: Ends) -> None:
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    values = np.arange(16, dtype=np.int64), grid[::2, ::3], np.array([True, False])
    _, view = ends.send(*values)
    assert len(view) == sum(each.nbytes for each in values)
    data, start = np.frombuffer(memoryview(view), np.uint8), 0
    for value in values:
        found = data[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
        np.testing.assert_array_equal(found, value)
        start += value.nbytes
    assert data.ctypes.data % 64 == 0, "places of all dtypes"


def test_a_segment_is_free_when_nothing_refers_to_its_arrays(ends: Ends) -> None:
    written, view = ends.send(np.full(10, 7, np.uint8))
    assert written.number == 0 and written.new_descriptor is not None and ends.writer.num_used == 1
    array = np.frombuffer(memoryview(view), np.uint8)
    del view
    second, other = ends.send(np.full(10, 9, np.uint8))
    assert second.number == 1 and second.new_descriptor is not None and ends.writer.num_used == 2
    assert set(array) == {7}
    kept = array[3:4]
    del array
    assert ends.writer.num_used == 2
    del kept
    assert ends.writer.num_used == 1
    third, _ = ends.send(np.zeros(10, np.uint8))
    assert third == Written(0, None), "the reader knows it"
    assert set(other) == {9}


def test_the_first_free_one_is_used(ends: Ends) -> None:
    views = [ends.send(np.ones(1, np.uint8))[1] for _ in range(3)]
    views[1] = None
    assert [ends.number(), ends.number()] == [1, 1]
    views[0] = None
    assert ends.number() == 0
    held = ends.send(np.ones(1, np.uint8)), ends.send(np.ones(1, np.uint8)), ends.send(np.ones(1, np.uint8))
    assert [written.number for written, _ in held] == [0, 1, 3]


def test_there_are_so_many_segments_and_no_more(ends: Ends) -> None:
    before = count_mappings()
    views = [ends.send(np.ones(1, np.uint8)) for _ in range(MAX_SEGMENTS)]
    assert ends.writer.num_used == MAX_SEGMENTS and count_mappings() == before + 2 * MAX_SEGMENTS
    assert ends.send(np.ones(1, np.uint8)) is None and ends.writer.num_used == MAX_SEGMENTS
    views.pop()
    assert ends.number() == MAX_SEGMENTS - 1


def test_a_message_may_fill_a_segment_and_no_more(ends: Ends) -> None:
    assert ends.send(np.zeros(1, np.uint8), num_bytes=ROOM + 1) is None and ends.writer.num_used == 0
    full = np.arange(ROOM, dtype=np.uint8)
    _, view = ends.send(full)
    np.testing.assert_array_equal(np.frombuffer(memoryview(view), np.uint8), full)
    assert ends.writer.num_used == 1, "nothing was written over the mark"


@pytest.mark.parametrize(("number", "num_bytes"), [(1, 1), (-1, 1), (0, -1), (0, ROOM + 1)])
def test_what_no_writer_sends_is_refused(ends: Ends, number: int, num_bytes: int) -> None:
    ends.send(np.ones(1, np.uint8))
    with pytest.raises(ValueError, match=f"segment {number} of shared memory has no {num_bytes} bytes"):
        ends.reader.view(number, num_bytes)
    assert len(ends.reader.view(0, 0)) == 0 and len(ends.reader.view(0, ROOM)) == ROOM


def test_a_segment_of_another_size_is_refused(ends: Ends) -> None:
    descriptor = os.memfd_create("seesay-other")
    os.ftruncate(descriptor, SEGMENT_BYTES - 1)
    with pytest.raises(ValueError, match="shared memory of"):
        ends.reader.add(0, descriptor)
    with pytest.raises(ValueError, match="segment 0"):
        ends.reader.view(0, 1)


def test_descriptors_are_the_callers_to_close(ends: Ends) -> None:
    before = count_files()
    written = ends.writer.write([(0, np.full(4, 5, np.uint8))], 4)
    assert written is not None and written.new_descriptor is not None and count_files() == before + 1
    assert os.fstat(written.new_descriptor).st_size == SEGMENT_BYTES
    assert os.pread(written.new_descriptor, 65, 0)[:1] == b"\1" and os.pread(written.new_descriptor, 4, 64) == b"\5" * 4
    ends.reader.add(0, written.new_descriptor)
    assert count_files() == before


def test_without_memory_nothing_is_left(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, num_bytes: int) -> Any:
        os.close(descriptor)
        raise OSError(12, "no memory")

    before = count_files()
    monkeypatch.setattr(segments, "map_shared", refuse)
    with pytest.raises(OSError, match="no memory"):
        ends.send(np.ones(1, np.uint8))
    assert count_files() == before and ends.writer.num_used == 0
    monkeypatch.setattr(segments, "map_shared", map_shared)
    assert ends.number() == 0, "it is tried again"


def test_closed_ends_hold_nothing(ends: Ends) -> None:
    before = count_mappings()
    _, view = ends.send(np.full(4, 5, np.uint8))
    assert count_mappings() == before + 2
    ends.writer.close()
    assert ends.writer.num_used == 0 and ends.writer.write([(0, np.ones(1, np.uint8))], 1) is None
    assert count_mappings() == before + 1
    ends.reader.close()
    with pytest.raises(ValueError, match="segment 0"):
        ends.reader.view(0, 1)
    assert set(view) == {5}, "it stays mapped while it is used"
    del view
    assert count_mappings() == before
