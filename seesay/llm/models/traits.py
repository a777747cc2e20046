"""The properties of a decoder by which the engine plans, fills and sizes its steps, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MediaTokens = Literal["all", "all_but_last"]
"""Of the tokens that take embeddings, all, or all but the last one of each item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """The keys, and the values, of one token in one layer."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTraits:
    """Properties of a decoder.

    embedding_size: of an embedding that takes the place of a token's. kv_shapes: one entry per layer.
    num_position_axes: rotary positions of a token.
    media_run: most neighbouring tokens that take embeddings and see each other; 0: no such tokens see later ones.
    is_prefix_lm: each token of a prompt sees all of its prompt; generated tokens see those before them.
    media_rows: the tokens whose rows linear layers compute otherwise than those of text; None: they compute all alike.
        `ModelInput.media_rows` says which rows these are.
    short_limit: texts of more positions are computed in another way from their first token on; None where all are
        computed alike. `ModelInput.is_long` says which are.
    flops_per_token: floating-point operations of one token's matrix products, without attention and the output head.
    has_graphs: its steps may be captured as CUDA graphs.
    """

    vocab_size: int
    embedding_size: int
    kv_shapes: tuple[KVShape, ...]
    num_position_axes: Literal[1, 3] = 1
    media_run: int = 0
    media_rows: MediaTokens | None = None
    is_prefix_lm: bool = False
    short_limit: int | None = None
    flops_per_token: int
    has_graphs: bool = True

    @property
    def has_runs(self) -> bool:
        """Whether there are tokens that see later ones (`TokenRuns`)."""
        return self.is_prefix_lm or self.media_run > 0
