"""Arrays of a message: small ones within it, large ones beside it, at places that every dtype may have."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from seesay.engine.process.arrays import INLINE_BYTES, ArrayReader, ArrayWriter, make_file, map_shared


def test_large_arrays_begin_at_whole_cache_lines() -> None:
    writer = ArrayWriter()
    values = [
        np.arange(INLINE_BYTES // 2 + odd, dtype=dtype)
        for odd, dtype in ((1, np.int16), (7, np.int64), (3, np.float32))
    ]
    payload = msgspec.msgpack.encode([np.arange(3), *values], enc_hook=writer.encode_hook)
    starts = [start for start, _ in writer.pieces]
    sizes = [value.nbytes for value in values]
    assert starts == [0, *np.cumsum([-(-size // 64) * 64 for size in sizes])[:-1]]
    shared = map_shared(writer.share(), writer.num_shared_bytes)
    reader = ArrayReader()
    with reader.reading(shared):
        small, *found = msgspec.msgpack.decode(payload, ext_hook=reader.extension_hook)
    assert small.tolist() == [0, 1, 2] and small.flags.writeable
    for value, read in zip(values, found, strict=True):
        assert read.flags.aligned and np.array_equal(value, read) and value.dtype == read.dtype


@pytest.mark.parametrize(("num_bytes", "is_inline"), [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
def test_the_largest_array_within_a_message(num_bytes: int, is_inline: bool) -> None:
    writer = ArrayWriter()
    msgspec.msgpack.encode(np.zeros(num_bytes, np.uint8), enc_hook=writer.encode_hook)
    assert (not writer.pieces) == is_inline
    assert writer.num_shared_bytes == (0 if is_inline else INLINE_BYTES + 64)


def test_memory_of_another_size_is_refused() -> None:
    writer = ArrayWriter()
    msgspec.msgpack.encode(np.zeros(INLINE_BYTES + 1, np.uint8), enc_hook=writer.encode_hook)
    descriptor = writer.share()
    with pytest.raises(ValueError, match=f"came with a message that tells of {writer.num_shared_bytes + 1}"):
        map_shared(descriptor, writer.num_shared_bytes + 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_what_no_writer_writes_is_refused() -> None:
    for value in (np.array(["text"]), object()):
        with pytest.raises(TypeError, match="cannot cross to another process"):
            ArrayWriter().encode_hook(value)
    payload = msgspec.msgpack.encode(np.zeros(INLINE_BYTES + 1, np.uint8), enc_hook=ArrayWriter().encode_hook)
    with pytest.raises(ValueError, match="is not expected in a message"):
        msgspec.msgpack.decode(payload, ext_hook=ArrayReader().extension_hook)
    for code, name, words in (
        (1, "|O", "an array of object"),
        (1, "<U1", "an array of <U1"),
        (3, "|u1", "extension 3"),
    ):
        data = msgspec.msgpack.encode((name, (1,), b"12345678"))
        with pytest.raises(ValueError, match=f"{words} is not expected in a message"):
            ArrayReader().extension_hook(code, memoryview(data))


def test_numbers_of_numpy_are_plain_ones() -> None:
    payload = msgspec.msgpack.encode([np.float32(1.5), np.int64(1 << 40), np.True_], enc_hook=ArrayWriter().encode_hook)
    assert msgspec.msgpack.decode(payload) == [1.5, 1 << 40, True]


def write(writer: ArrayWriter, value: Any) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=writer.encode_hook)


def test_a_system_that_writes_little_at_a_time_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    values = [np.arange(INLINE_BYTES + 1, dtype=np.uint16)[::-1], np.ones((3, INLINE_BYTES), np.int8)]
    writer = ArrayWriter()
    payload = write(writer, values)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda descriptor, data, start: pwrite(descriptor, data[:10_000], start))
        shared = map_shared(writer.share(), writer.num_shared_bytes)
    reader = ArrayReader()
    with reader.reading(shared):
        found = msgspec.msgpack.decode(payload, ext_hook=reader.extension_hook)
    for one, other in zip(found, values, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="is not expected in a message"):  # of the next message
        msgspec.msgpack.decode(payload, ext_hook=reader.extension_hook)


def count_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def count_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:seesay-test")


def test_without_memory_no_file_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "no space left")

    writer, files = ArrayWriter(), count_files()
    write(writer, np.zeros(INLINE_BYTES + 1, np.uint8))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="no space left"):
            writer.share()
    assert count_files() == files


def test_memory_is_mapped_for_as_long_as_it_is_used() -> None:
    """Of any size: that of a file which nobody has written takes no memory."""
    files, num_bytes = count_files(), (1 << 31) + 64
    os.ftruncate(descriptor := make_file("seesay-test"), num_bytes)
    shared = map_shared(descriptor, num_bytes)
    assert len(shared) == num_bytes and shared[num_bytes - 1] == 0
    assert (count_files(), count_mappings()) == (files, 1)
    array = np.frombuffer(memoryview(shared), np.uint8, 3, num_bytes - 3)
    del shared
    gc.collect()
    assert array.tolist() == [0, 0, 0] and count_mappings() == 1
    del array
    gc.collect()
    assert count_mappings() == 0


def test_memory_that_cannot_be_mapped_is_said_so() -> None:
    files = count_files()
    with pytest.raises(OSError, match="cannot be mapped") as raised:
        map_shared(make_file("seesay-test"), 0)  # nothing is no mapping
    assert raised.value.errno == 22 and count_files() == files
