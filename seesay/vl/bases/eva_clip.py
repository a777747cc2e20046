"""The base of families with CogVLM's EVA-CLIP (arXiv 2311.03079, section 2.1): pictures of one size, whose rows stand
at one position of the decoder's, between two learned rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, MediaItem, MediaSize, Modality
from seesay.values.frame_chain import Chain, Library, Tiles
from seesay.vl.bases.arrangement import Rows, chain, number_rows
from seesay.vl.bases.projected_tower import ProjectedTowerFamily
from seesay.vl.family import Features

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_START_ROW, _END_ROW = -2, -1
"""The rows `boi` and `eoi` in an arrangement."""
EVA_CLIP_TOWER = (
    (r"^tower\.proj\.", "tower.patch_embed."),
    (r"^tower\.cls_embedding$", "tower.cls_token"),
    (r"^tower\.position_embedding\.weight$", "tower.pos_embed"),
    (r"\.input_layernorm\.", ".norm1."),
    (r"\.post_attention_layernorm\.", ".norm2."),
    (r"\.attention\.query_key_value\.", ".attn.qkv."),
    (r"\.attention\.dense\.", ".attn.proj."),
    (r"\.linear_proj\.", ".proj."),
    (r"^projector\.projector\.norm1\.", "projector.projector.proj_norm."),
    (r"\.dense_h_to_4h\.", ".up_proj."),
    (r"\.dense_4h_to_h\.", ".down_proj."),
)
"""`WeightMap.tower_patterns` of the names that `name_eva_clip` leaves."""


def name_eva_clip(prefix: str) -> dict[str, str]:
    """Return `WeightMap.tower` of a tower whose tensors' names begin with `prefix`."""
    return {
        f"{prefix}patch_embedding.": "tower.",
        f"{prefix}transformer.layers.": "tower.blocks.",
        f"{prefix}conv.": "projector.patch_merger.merging_layer.",
        f"{prefix}linear_proj.": "projector.projector.",
        f"{prefix}boi": "learned.boi",
        f"{prefix}eoi": "learned.eoi",
    }


class EvaClipFamily(ProjectedTowerFamily):
    """Configuration, processor and model are code beside the weights; none of it is run.

    The configuration has `row_merge`: squares of row_merge² patches are joined to one row; `row_divisor` of rows; and
    `row_size`, the columns of joined squares before they are projected.
    Features: the picture, or each frame of a video, in the tower's `image_size` [N, S, S, 3], or frames; the
    arrangement of its rows, between two learned ones; and the plan's measures.
    """

    modalities: tuple[Modality, ...] = (Modality.IMAGE,)
    strategies = ("default",)
    processor = "CLIPImageProcessor"
    library: ClassVar[Library] = "pillow"

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        merge = checkpoint.model_config.row_merge
        if self.grid_side % merge:
            raise CheckpointError(
                f"{checkpoint.path}: a grid of {self.grid_side}² patches cannot be merged {merge} by {merge}"
            )
        self._size = (self.image_size, self.image_size)
        self.num_rows = (self.grid_side // merge) ** 2

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self.pixels.as_json(), "size": self.image_size}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        return {"num_tiles": size.num_frames, "resized": self._size}

    def positions(
        self, token_ids: npt.NDArray[np.int64], items: tuple[MediaItem, ...]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return int64 [T] that count up, but for rows that stand beside each other: all have one position, between
        those of the first and the last one, which are learned rows."""
        steps = np.ones(len(token_ids) + 1, dtype=np.int64)
        steps[0] = 0
        for item in items:
            for rows in np.split(item.slots, np.flatnonzero(np.diff(item.slots) > 1) + 1):
                steps[rows[0] + 2 : rows[-1]] = 0
        found = np.cumsum(steps)
        return found[:-1], int(found[-1])

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        return ((self.pixels.resize(self._size), Tiles(self._size)),)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        return {**super().preprocess(media, measures), "rows": self._arrange(measures["num_tiles"])}

    def _arrange(self, num_tiles: int) -> Rows:
        start, end = (np.full(1, row, dtype=np.int32) for row in (_START_ROW, _END_ROW))
        tiles = (number_rows(tile * self.num_rows, (1, self.num_rows)) for tile in range(num_tiles))
        return chain(*(part for tile in tiles for part in (start, tile, end)))

    def largest_size(self) -> tuple[int, int]:
        return self._size

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.projected_vit import ProjectorConfig, load_encoder
        from seesay.encoders.towers.vit import VitConfig

        config = self.checkpoint.model_config
        tower = VitConfig.of_clip(
            config.vision_config,
            has_class_token=True,
            feature_layers=self._feature_layers,
            has_patch_bias=True,
            has_input_norm=False,
            class_axes=1,
        )
        tower = replace(tower, layers=replace(tower.layers, qkv=("qkv",), norms_updates=True))
        text = config.text_config
        projector = ProjectorConfig(
            out_hidden_size=text.hidden_size,
            activation="silu",
            merge=config.row_merge,
            merged_size=config.row_size,
            inner_size=text.intermediate_size,
            learned_rows=("boi", "eoi"),
            learned_axes=(3, 3),
            divisor=config.row_divisor,
        )
        normalizer = PixelNormalizer(**self.pixels.statistics)
        return load_encoder(
            self.checkpoint, self.weights.tower_name, tower, projector, normalizer, device=device, dtype=dtype
        )
