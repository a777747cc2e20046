"""The decoder as the runner knows it: computes steps, and owns the weights. Does not know requests.

Input is packed: the tokens of all rows of a step after one another, with no batch axis. Padding comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from seesay.device.linear.loaded_weights import LoadedWeights
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops import DecodeRows, RowLayout, SlotRows
from seesay.llm.plans.traits import DecoderTraits


class RowSplit(NamedTuple):
    """Which of T rows are of media, and which are not: int64 [R] and [T - R], both ascending."""

    media: torch.Tensor
    text: torch.Tensor


class SeenMedia(NamedTuple):
    """Rows `start` … `stop` - 1 of `MediaAttention.rows` attend to these embeddings."""

    start: int
    stop: int
    embeddings: tuple[torch.Tensor, ...]


class MediaAttention(NamedTuple):
    """The tokens that attend to media (see `DecoderTraits.attends_media`), int64 [R], and to which."""

    rows: torch.Tensor
    seen: tuple[SeenMedia, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """One step's input, T packed tokens.

    input_ids int64 [T]; positions int64 [T] or [axes, T]; stretches float64 [T] or None, which is 0.0 for all (see
    `LengthScaling`);
    slot_mapping int64 [T]: block · block_size + offset where each token's KV goes; layout: the rows;
    splice_rows int64 [R] and splice_embeddings [R, embedding_size]: the tokens that take an embedding instead of their
    id's.
    media_rows: the rows of media (see `DecoderTraits.media_rows`); None where there are none.
    media_attention: see `DecoderTraits.attends_media`; None where no token attends to media.
    faults: float32 [T] of zeros; becomes NaN for tokens that left something not finite in the KV cache.
    is_valid: bool [T], false for padding: nothing reads what the decoder computes for it, so experts need not. None:
    there is no padding.
    adapters: the tokens that adapters change, by the slots of these (see `Adapters`); None where there are none.
    state_slots: int64 [B]: where the states of the rows' sequences are; None where layers have none.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    layout: RowLayout | DecodeRows
    faults: torch.Tensor
    stretches: torch.Tensor | None = None
    splice_rows: torch.Tensor | None = None
    splice_embeddings: torch.Tensor | None = None
    media_rows: RowSplit | None = None
    media_attention: MediaAttention | None = None
    is_valid: torch.Tensor | None = None
    adapters: SlotRows | None = None
    state_slots: torch.Tensor | None = None


class Decoder(Protocol):
    """A text decoder on its device, with its weights.

    On a GPU, `forward` and `logits` of `DecodeRows` are captured in CUDA graphs: they read nothing from the device, and
    compute with tensors that stay at their addresses while `weights` are replaced by ones of the same layout.
    """

    @property
    def weights(self) -> LoadedWeights: ...

    @property
    def traits(self) -> DecoderTraits: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def needs_clean_blocks(self) -> bool:
        """Whether the blocks that a sequence begins to fill must hold nothing that is not finite."""
        ...

    def forget_blocks(self) -> None:
        """Drop every copy of what blocks contain: blocks were written to by something other than a step."""
        ...

    def forward(
        self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states [N, hidden] after the last norm, of the tokens `wanted` int64 [N] or of all. Writes keys and
        values of all tokens to `caches`, one per layer."""
        ...

    def warm_up(self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor) -> None:
        """Call every kernel that `forward` and `logits` of a step like this one call."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [N, vocab] of hidden states [N, hidden], in the model's dtype."""
        ...
