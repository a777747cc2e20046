"""Arrays of a message: small ones within it, large ones beside it, at places that every dtype may have."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest

from seesay.engine.process.arrays import INLINE_BYTES, ArrayReader, ArrayWriter, map_shared


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
