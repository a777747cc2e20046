from __future__ import annotations

import sys

import numpy as np

from seesay.processors import hashing


def test_parts_are_framed():
    assert len(hashing.digest(b"a")) == 32
    different = [(), (b"",), (b"", b""), (b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"c", b"ab")]
    assert len({hashing.digest(*parts) for parts in different}) == len(different)


def test_views_hash_as_their_bytes():
    array = np.arange(24, dtype=np.int64).reshape(4, 6)
    assert hashing.digest(array.data) == hashing.digest(array.tobytes())
    assert hashing.digest(array.T.data) == hashing.digest(array.T.tobytes())
    assert hashing.digest(array[:0].data) == hashing.digest(b"")


def test_hashlib_stands_in_for_blake3(monkeypatch):
    monkeypatch.setitem(sys.modules, "blake3", None)
    hasher = hashing._pick_hasher()()
    hasher.update(b"x")
    assert len(hasher.digest()) == 32
