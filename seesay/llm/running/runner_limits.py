"""How large the steps and sequences of a runner may become: what its memory and its kernels are prepared for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seesay.llm.memory.kv_layout import KVFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """max_batch_size: rows of a step. max_step_tokens: tokens of a step. session_len: tokens of a sequence, prompt and
    answer. block_size: tokens of a KV block. kv_format: that of keys and values in the cache. max_verified_tokens:
    tokens of a step with proposed tokens, if a graph computes it. num_adapter_slots: adapters that are in use at a
    time."""

    max_batch_size: int
    max_step_tokens: int
    session_len: int
    block_size: int
    kv_format: KVFormat = "plain"
    max_verified_tokens: int = 0
    num_adapter_slots: int = 0

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_step_tokens", "session_len", "block_size"):
            assert getattr(self, name) >= 1, f"{name}={getattr(self, name)}"

    @property
    def max_sequence_blocks(self) -> int:
        """KV blocks of the longest sequence."""
        return -(-self.session_len // self.block_size)
