"""Keys of KV blocks for the prefix cache: equal keys mean equal KV contents. Knows nothing about who holds a block.

What a block's KV depends on is all tokens and embeddings up to its end. Its key therefore chains the key of the block
before it with its own token ids and, for every media item that reaches into it, the item's hash, where the item lies
and which positions take which rows of its embedding. Where each token of a prompt sees all of it, the hash of the whole
prompt is in the root of the chain.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seesay.llm.plans.block_key import BlockKey

if TYPE_CHECKING:
    import numpy.typing as npt

    from seesay.values import MediaItem


class PromptKeys:
    """The keys of the full blocks of a prompt, which equal prompts share for as long as one of them is alive."""

    __slots__ = ("__weakref__", "keys")

    def __init__(self, keys: tuple[BlockKey, ...]) -> None:
        self.keys = keys


def _pick_digest() -> Callable[[bytes], bytes]:
    """A hash function of 32 bytes: BLAKE3 where it is installed."""
    try:
        from blake3 import blake3
    except ImportError:
        return lambda data: hashlib.blake2b(data, digest_size=32).digest()
    return lambda data: blake3(data).digest()


digest = _pick_digest()


def make_root_hash(salt: bytes) -> bytes:
    """Return the key that stands for the parent of a first block. Sequences of different salts never share a block."""
    return digest(b"kv-block-root" + salt)


def hash_prompt(token_ids: npt.NDArray[np.int64], items: Sequence[MediaItem]) -> bytes:
    """Return a hash of 32 bytes of a whole prompt: its `token_ids` [T] and the `items` in them."""
    return make_block_key(b"", token_ids, items, 0).hash


def make_block_key(parent: bytes, token_ids: npt.NDArray[np.int64], items: Sequence[MediaItem], start: int) -> BlockKey:
    """Key of the block that holds `token_ids` [block_size] from position `start`; `items` are those that reach into it.

    Every variable part is preceded by its length, so that different contents cannot spell the same bytes.
    """
    stop = start + len(token_ids)
    parts = [parent, struct.pack("<qq", len(token_ids), len(items)), token_ids.tobytes()]
    for item in items:
        first, last = np.searchsorted(item.slots, (start, stop))
        parts.append(struct.pack("<qqqq", len(item.hash), item.span[0] - start, first, last - first))
        parts.append(item.hash)
        parts.append((item.slots[first:last] - start).tobytes())
    content = b"".join(parts)
    return BlockKey(digest(content), content)


def extend_block_keys(
    keys: list[BlockKey],
    num_blocks: int,
    *,
    token_ids: npt.NDArray[np.int64],
    items: Sequence[MediaItem],
    salt: bytes,
    block_size: int,
) -> None:
    """Append to `keys` until it has the keys of the first `num_blocks` full blocks of `token_ids` [T]."""
    assert num_blocks * block_size <= len(token_ids), "only full blocks have a key"
    if len(keys) >= num_blocks:
        return
    parent = keys[-1].hash if keys else make_root_hash(salt)
    first = bisect_right(items, len(keys) * block_size, key=lambda item: item.span[1])
    for index in range(len(keys), num_blocks):
        start, stop = index * block_size, (index + 1) * block_size
        while first < len(items) and items[first].span[1] <= start:
            first += 1
        last = first
        while last < len(items) and items[last].span[0] < stop:
            last += 1
        keys.append(make_block_key(parent, token_ids[start:stop], items[first:last], start))
        parent = keys[-1].hash
