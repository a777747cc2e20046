"""Content hashes, the only keys of the caches: 32 bytes over parts, each framed by its length.

Uses blake3, or SHA-256 if blake3 is not installed: it is the fastest hash of hashlib on processors with SHA
instructions. Large parts are hashed without holding the GIL.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from seesay.system.thread_pool import ThreadPool

LARGE_BYTES = 1 << 20
"""Size that one thread hashes. Larger parts are hashed by several threads, and their hash goes into the digest."""


class _Hash(NamedTuple):
    """A hasher for the parts of a digest, and a function that hashes one large part."""

    new: Callable[[], Any]
    hash_large: Callable[[memoryview], bytes]


def _pick_hash() -> _Hash:
    try:
        from blake3 import blake3
    except ImportError:
        return _Hash(hashlib.sha256, _hash_pieces)
    return _Hash(blake3, lambda part: bytes(blake3(part, max_threads=blake3.AUTO).digest()))


def _hash_pieces(part: memoryview) -> bytes:
    """Return the SHA-256 of the SHA-256 hashes of pieces of `LARGE_BYTES`."""
    pieces = (part[start : start + LARGE_BYTES] for start in range(0, part.nbytes, LARGE_BYTES))
    threads = _threads(os.getpid())
    hashes = [threads.submit(lambda piece: hashlib.sha256(piece).digest(), piece) for piece in pieces]
    return hashlib.sha256(b"".join(future.result() for future in hashes)).digest()


@cache
def _threads(_process_id: int) -> ThreadPool:
    """Return the threads of this process. Threads do not survive a fork, so the process id is the cache key."""
    return ThreadPool(min(4, os.cpu_count() or 1), name="seesay-hash")


_hash = _pick_hash()


def digest(*parts: bytes | memoryview) -> bytes:
    """Return the 32-byte hash of the parts in order: `digest(b"ab", b"c") != digest(b"a", b"bc")`.

    A memoryview is read in place if it is C-contiguous, and copied otherwise.
    """
    hasher = _hash.new()
    for part in parts:
        size = part.nbytes if isinstance(part, memoryview) else len(part)
        hasher.update(size.to_bytes(8, "little"))
        if isinstance(part, memoryview):
            part = part.cast("B") if part.c_contiguous and size else part.tobytes()
        hasher.update(part if size <= LARGE_BYTES else _hash.hash_large(memoryview(part)))
    result: bytes = hasher.digest()
    return result
