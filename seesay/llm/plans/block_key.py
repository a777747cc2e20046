"""The name of what a KV block contains."""

from __future__ import annotations

from typing import NamedTuple


class BlockKey(NamedTuple):
    """`content` is everything the block's KV depends on (the parent by its hash); `hash` is 32 bytes over it."""

    hash: bytes
    content: bytes
