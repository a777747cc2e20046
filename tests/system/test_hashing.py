from __future__ import annotations

import sys

import numpy as np
import pytest

from seesay.system import hashing


def test_parts_are_framed() -> None:
    assert len(hashing.digest(b"a")) == 32
    different = [(), (b"",), (b"", b""), (b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"c", b"ab")]
    assert len({hashing.digest(*parts) for parts in different}) == len(different)


def test_views_hash_as_their_bytes() -> None:
    array = np.arange(24, dtype=np.int64).reshape(4, 6)
    assert hashing.digest(array.data) == hashing.digest(array.tobytes())
    assert hashing.digest(array.T.data) == hashing.digest(array.T.tobytes())
    assert hashing.digest(array[:0].data) == hashing.digest(b"")


@pytest.mark.parametrize("has_blake3", [True, False])
def test_each_byte_of_a_large_part_counts(monkeypatch: pytest.MonkeyPatch, has_blake3: bool) -> None:
    """With hashlib in place of blake3, too; several threads hash it, and the order of their pieces counts."""
    if not has_blake3:
        monkeypatch.setitem(sys.modules, "blake3", None)
    monkeypatch.setattr(hashing, "_hash", hashing._pick_hash())
    content = np.random.default_rng(0).integers(0, 256, 2 * hashing.LARGE_BYTES + 100, dtype=np.uint8)
    whole = hashing.digest(content.data)
    assert len(whole) == 32 and whole == hashing.digest(content.tobytes()) == hashing.digest(content[None].data)
    swapped = np.concatenate((np.split(content[:-100], 2)[::-1], content[-100:]), axis=None)
    others = [content[:-1], np.append(content, np.uint8(0)), swapped]
    for place in (0, hashing.LARGE_BYTES - 1, hashing.LARGE_BYTES, len(content) - 1):
        others.append(content.copy())
        others[-1][place] ^= 1
    assert len({whole, *(hashing.digest(other.data) for other in others)}) == 1 + len(others)
