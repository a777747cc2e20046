"""The tower of Ovis (arXiv 2405.20797): each row of a picture is a mixture of the words of a visual vocabulary, whose
embeddings the decoder sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint import Checkpoint
from seesay.device.linear.linear import Linear
from seesay.encoders.towers.layers import PixelNormalizer, join_squares, make_empty_embedding
from seesay.encoders.towers.tiles import TileEncoder
from seesay.encoders.towers.vit import Vit, VitConfig
from seesay.encoders.towers.weights import load_tower


@dataclass(frozen=True, slots=True, kw_only=True)
class VisualVocabulary:
    """num_words: of the vocabulary, of which the last `num_indicators` stand between the rows of pictures. stride:
    squares of stride² patches make one row. is_hard: a row is its most probable word alone."""

    num_words: int
    num_indicators: int
    stride: int
    is_hard: bool


class OvisVit(nn.Module):
    """Patch vectors [N, patches, 3·P²] to rows [N, R, hidden_size]."""

    def __init__(self, tower: VitConfig, vocabulary: VisualVocabulary, hidden_size: int) -> None:
        super().__init__()
        self.config, self.vocabulary = tower, vocabulary
        self.tower = Vit(tower)
        num_words = vocabulary.num_words - vocabulary.num_indicators
        self.head_linear = Linear(tower.hidden_size * vocabulary.stride**2, num_words, bias=False)
        self.head_norm = nn.LayerNorm(num_words)
        self.visual_embeddings_table = make_empty_embedding(vocabulary.num_words, hidden_size)

    def forward(self, patches: Tensor) -> Tensor:
        joined = join_squares(self.tower(patches), self.config.grid, self.vocabulary.stride)
        logits = self.head_norm(self.head_linear(joined))
        words = self.visual_embeddings_table.weight[: logits.shape[-1]]
        if self.vocabulary.is_hard:
            return words[logits.argmax(dim=-1)]
        return F.softmax(logits, dim=-1) @ words

    def stack(self) -> Tensor:
        """Return the indicators' rows [num_indicators, hidden_size]."""
        return self.visual_embeddings_table.weight[-self.vocabulary.num_indicators :]


def load_ovis(
    checkpoint: Checkpoint,
    name_of: Callable[[str], str | None],
    tower: VitConfig,
    vocabulary: VisualVocabulary,
    normalizer: PixelNormalizer,
    *,
    hidden_size: int,
    device: torch.device,
    dtype: torch.dtype,
) -> TileEncoder:
    """Return the tower with its weights, as an encoder. Arrangements count the indicators from the end. Raises
    `CheckpointError` naming a tensor that does not fit."""
    with torch.device("meta"):
        model = OvisVit(tower, vocabulary, hidden_size)
    weights = load_tower(model, checkpoint, name_of, device=device, dtype=dtype)
    return TileEncoder(
        model,
        normalizer,
        tile_size=tower.image_size,
        patch_size=tower.patch_size,
        hidden_size=hidden_size,
        learned=model,
        weights=weights,
    )
