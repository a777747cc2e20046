"""Says from which tokens on sequences can go on with what others have computed: a property of the layers' memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from seesay.llm.plans.block_key import BlockKey


class ResumePoints(Protocol):
    """What the layers can resume from. The scheduler asks before a sequence starts behind computed tokens."""

    def find_last(self, keys: Sequence[BlockKey], num_tokens: int) -> int:
        """Return behind how many tokens, at most `num_tokens`, a sequence can go on whose full blocks have `keys`. The
        keys and values of the first `num_tokens` are there."""
        ...


class EveryToken:
    """Resume points of layers that attend to keys and values alone: every token is one."""

    def find_last(self, keys: Sequence[BlockKey], num_tokens: int) -> int:
        del keys
        return num_tokens
