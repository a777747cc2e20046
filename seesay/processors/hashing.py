"""Content hashes, the only keys of the caches: 32 bytes over length-framed parts, which cannot run together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

DIGEST_BYTES = 32


def _pick_hasher() -> Callable[[], Any]:
    try:
        from blake3 import blake3
    except ImportError:
        return lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)
    return blake3


_new_hasher = _pick_hasher()


def digest(*parts: bytes | memoryview) -> bytes:
    """32-byte hash of the parts in order: `digest(b"ab", b"c") != digest(b"a", b"bc")`.

    A memoryview is read in place when it is C-contiguous, and copied otherwise.
    """
    hasher = _new_hasher()
    for part in parts:
        size = part.nbytes if isinstance(part, memoryview) else len(part)
        hasher.update(size.to_bytes(8, "little"))
        if isinstance(part, memoryview):
            part = part.cast("B") if part.c_contiguous and size else part.tobytes()
        hasher.update(part)
    result: bytes = hasher.digest()
    return result
