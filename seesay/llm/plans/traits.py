"""The properties of a decoder by which the engine plans, fills and sizes its steps, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

MediaTokens = Literal["all", "all_but_last", "span"]
"""Of the tokens that take embeddings, all, or all but the last one of each item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """The keys, and the values, of one token in one layer. turned_dim: one row of a token stands for both, of which so
    many components are rotated; 0: they are two."""

    num_kv_heads: int
    head_dim: int
    turned_dim: int = 0


NO_KV = KVShape(num_kv_heads=0, head_dim=0)
"""That of a layer which keeps nothing of single tokens."""


class StateTensor(NamedTuple):
    """A tensor that a layer keeps of each sequence. is_exact: in float32, and not in the model's type."""

    shape: tuple[int, ...]
    is_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthScaling:
    """How the rotary embedding of a sequence depends on its length. All tokens of a sequence are turned alike, by its
    *stretch*, a number; 0.0 is that of a sequence of up to `trained` positions, whose frequencies are as trained.

    switch: longer sequences take a second set of frequencies; a sequence that grows beyond `trained` positions is
        computed again from its beginning.
    dynamic: the base of the frequencies is multiplied by alpha ** (dim / (dim - 2)) (NTK-aware scaling), with alpha =
        factor · L / trained - (factor - 1), where L is the length of the prompt.
    doubling: dynamic with alpha = 2 ** ceil(log2(L / trained) + 1) - 1, as the first Qwen has it.
    """

    kind: Literal["switch", "dynamic", "doubling"]
    trained: int
    factor: float = 1.0

    @property
    def is_by_prompt(self) -> bool:
        """Whether the prompt alone decides, so that an answer goes on with the frequencies it began with."""
        return self.kind != "switch"

    def find_stretch(self, num_positions: int) -> float:
        """Return the stretch for a length: log2(alpha), or 1.0 for the second set of frequencies. Of a sequence, that
        is the length of its prompt (`is_by_prompt`) or of all its known tokens."""
        if num_positions <= self.trained:
            return 0.0
        if self.kind == "switch":
            return 1.0
        ratio = num_positions / self.trained
        if self.kind == "doubling":
            return math.log2(2 ** math.ceil(math.log2(ratio) + 1) - 1)
        return math.log2(self.factor * ratio - (self.factor - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTraits:
    """Properties of a decoder.

    embedding_size: of an embedding that takes the place of a token's. kv_shapes, state_shapes: one entry per layer, of
    what it keeps of each token and of each sequence. No state_shapes: no layer keeps anything of sequences.
    num_position_axes: rotary positions of a token.
    media_run: most neighbouring tokens that take embeddings and see each other; 0: no such tokens see later ones.
    attends_media: embeddings take no token's place: they are keys and values to which tokens attend in layers that have
        no others (see `media_sight`). There are no shapes of these layers in `kv_shapes`.
    is_prefix_lm: each token of a prompt sees all of its prompt; generated tokens see those before them.
    media_rows: the tokens whose rows linear layers compute otherwise than those of text; None: they compute all alike.
        `ModelInput.media_rows` says which rows these are.
    length_scaling: how the rotary embedding depends on the length of a sequence; None where it does not.
        `ModelInput.stretches` has the stretch of each token.
    flops_per_token: floating-point operations of one token's matrix products, without attention and the output head.
    has_graphs: its steps may be captured as CUDA graphs.
    """

    vocab_size: int
    embedding_size: int
    kv_shapes: tuple[KVShape, ...]
    state_shapes: tuple[tuple[StateTensor, ...], ...] = ()
    num_position_axes: int = 1
    media_run: int = 0
    attends_media: bool = False
    media_rows: MediaTokens | None = None
    is_prefix_lm: bool = False
    length_scaling: LengthScaling | None = None
    flops_per_token: int
    has_graphs: bool = True

    @property
    def has_states(self) -> bool:
        """Whether layers keep something of whole sequences."""
        return bool(self.state_shapes)

    @property
    def has_runs(self) -> bool:
        """Whether there are tokens that see later ones (`TokenRuns`)."""
        return self.is_prefix_lm or self.media_run > 0
