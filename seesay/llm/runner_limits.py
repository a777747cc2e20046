"""How large the steps and sequences of a runner may become: what its memory and its kernels are prepared for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """max_batch_size: rows of a step. max_step_tokens: tokens of a step. session_len: tokens of a sequence, prompt and
    answer. block_size: tokens of a KV block."""

    max_batch_size: int
    max_step_tokens: int
    session_len: int
    block_size: int

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_step_tokens", "session_len", "block_size"):
            assert getattr(self, name) >= 1, f"{name}={getattr(self, name)}"

    @property
    def max_sequence_blocks(self) -> int:
        """KV blocks of the longest sequence."""
        return -(-self.session_len // self.block_size)
