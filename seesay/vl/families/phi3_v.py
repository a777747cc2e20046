"""Phi-3-vision and Phi-3.5-vision: tiles of a picture that is fitted into as many as there may be, and the whole of it
(HD transform, arXiv 2404.06512, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain
from seesay.vl.bases.arrangement import Rows, chain, end_lines, join_tiles, number_rows
from seesay.vl.bases.hd_transform import OPTION, HDTransform
from seesay.vl.bases.pixels import read_count
from seesay.vl.bases.projected_tower import ProjectedTowerFamily
from seesay.vl.bases.tower_names import CLIP_TOWER, TWO_LAYERS
from seesay.vl.family import MAX_TILES, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

_FRONT = "model.vision_embed_tokens."
_IMAGE_TOKEN = "<|image|>"
_LINE_END, _VIEW_END = -2, -1
"""The rows `sub_GN` and `glb_GN` in an arrangement."""


class Phi3Vision(ProjectedTowerFamily):
    """Configuration, processor and model are code beside the weights; none of it is run.

    Features: tiles [T, S, S, 3], S being the tower's `image_size`, of the picture with white around it, or frames;
    `joined`, their (rows, columns); the arrangement of their rows; and the plan's measures.
    """

    architectures = ("Phi3VForCausalLM",)
    published = (
        Published(decoder="phi3", names=("microsoft/Phi-3-vision-128k-instruct", "microsoft/Phi-3.5-vision-instruct")),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: (OPTION,)}
    tokenizes_apart = True
    strategies = ("default",)
    processor = "Phi3VImageProcessor"
    library = "pillow"
    learned_rows = ("sub_GN", "glb_GN")
    projector_options = {"merge": 2, "learned_axes": (4, 3), "projects_learned": True}
    weights = WeightMap(
        decoder={**{f"model.{part}": part for part in ("layers.", "embed_tokens.", "norm.")}, "lm_head.": "lm_head."},
        tower={
            f"{_FRONT}img_processor.vision_model.": "tower.",
            f"{_FRONT}img_projection.": "projector.",
            **{_FRONT + name: f"learned.{name}" for name in learned_rows},
        },
        ignored=(f"{_FRONT}wte.", f"{_FRONT}img_processor.vision_model.post_layernorm."),
        tower_patterns=(*CLIP_TOWER, *TWO_LAYERS),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        max_tiles = read_count(self.settings, "num_crops", 1, most=MAX_TILES, where=checkpoint.path)
        self._hd = HDTransform(tile=self.image_size, max_tiles=max_tiles)
        if self.grid_side % 2:
            raise CheckpointError(f"{checkpoint.path}: a grid of {self.grid_side}² patches cannot be merged 2 by 2")
        self._grid = (self.grid_side // 2, self.grid_side // 2)

    def find_placeholder(self, modality: Modality) -> tuple[int, str]:
        return self.token_id(_IMAGE_TOKEN), "<|image_1|>"

    @property
    def spellings(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: r"<\|image_\d{1,4}\|>"}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self.pixels.as_json(), "tile": self._hd.tile, "max_tiles": self._hd.max_tiles}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, OPTION: 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        return self._hd.measure(size, options)

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self.image_token] * len(self._arrange(measures)), True))

    def _arrange(self, measures: Features) -> Rows:
        whole = number_rows(0, self._grid)
        lines = join_tiles(whole.size, measures["joined"], self._grid)
        end = np.full(1, _VIEW_END, dtype=np.int32)
        return chain(end_lines(lines, _LINE_END), end, end_lines(whole, _LINE_END))

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self.grid_side**2

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        return (self._hd.make_chain(size, measures, self.pixels),)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        return {**super().preprocess(media, measures), "rows": self._arrange(measures)}

    def largest_size(self) -> tuple[int, int]:
        return self._hd.largest_size()
