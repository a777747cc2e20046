"""Tables of KV blocks that hold words."""

from __future__ import annotations

from seesay.llm.plans.block_key import BlockKey
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.prefix import digest


def make_chain(*words: str) -> list[BlockKey]:
    """Keys of a table whose blocks hold these words."""
    keys: list[BlockKey] = []
    for word in words:
        content = (keys[-1].hash if keys else b"") + word.encode()
        keys.append(BlockKey(digest(content), content))
    return keys


def fill(pool: BlockPool, *words: str) -> tuple[int, ...]:
    """A table of registered blocks that hold these words."""
    block_ids = pool.allocate(len(words))
    for block_id, key in zip(block_ids, make_chain(*words), strict=True):
        pool.register(block_id, key)
    return block_ids
