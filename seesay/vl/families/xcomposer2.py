"""InternLM-XComposer2 (arXiv 2401.16420), 4KHD (arXiv 2404.06512) and 2.5 (arXiv 2407.03320): a CLIP, and an InternLM2
whose linear layers add something of low rank to the rows of pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.llm.models.spec import MediaRowsSpec
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Tiles
from seesay.vl.bases.arrangement import Rows, chain, end_lines, join_tiles, number_rows
from seesay.vl.bases.hd_transform import OPTION, HDTransform
from seesay.vl.bases.pixels import PixelSettings, read_count
from seesay.vl.bases.projected_tower import ProjectedTowerFamily
from seesay.vl.bases.tower_names import CLIP_TOWER, TWO_LAYERS
from seesay.vl.family import MAX_TILES, Backbone, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import INTERNLM2_DECODER, WeightMap

_FRONT = "vit.vision_tower.vision_model."
_POSITIONS = f"{_FRONT}embeddings.position_embedding.weight"
_LEARNED = ("plora_sub_GN", "plora_glb_GN")
_LINE_END, _VIEW_END = -2, -1
"""The rows `plora_sub_GN` and `plora_glb_GN` in an arrangement."""
_MERGE = 2
_MAX_TILES_4KHD, _MAX_TILES, _MAX_TILES_OF_SEVERAL = 25, 24, 6
"""The last one is that of 2.5 for each picture of a prompt that has several, those of earlier turns among them."""
_NARROW_ALPHA = 16
"""Of additions to queries, keys and values that have a rank of their own; all others are multiplied by 1."""


class InternLMXComposer2(ProjectedTowerFamily):
    """Configuration, tokenizer and model are code beside the weights; none of it is run.

    Models without learned rows take a picture of any shape as one square, the others cut it into
    tiles. Of these, 4KHD has additions to queries, keys and values of another rank than those to the attended values;
    it fills as many tiles as it may and centers the picture, where 2.5 does not enlarge it beyond whole tiles. Each
    text between pictures begins with BOS, but for 2.5. This one has products for tasks beside its weights, which
    `seesay lite extract_tasks` makes adapters of.

    Features: tiles [T, S, S, 3], S being the side of the tower's pictures, or frames; with tiles, `joined`, their
    (rows, columns), and the arrangement of their rows; and the plan's measures.
    """

    architectures = ("InternLMXComposer2ForCausalLM",)
    published = (
        Published(
            decoder="llama",
            names=(
                "internlm/internlm-xcomposer2-vl-7b",
                "internlm/internlm-xcomposer2-4khd-7b",
                "internlm/internlm-xcomposer2d5-7b",
                "internlm/internlm-xcomposer2d5-7b-4bit",
            ),
        ),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: (OPTION,)}
    strategies = ("default",)
    begins_empty = False
    processor = "XComposer2TileProcessor"
    library = "pillow"
    weights = WeightMap(
        decoder={"model.": "", "output.": "lm_head."},
        decoder_patterns=(
            *INTERNLM2_DECODER,
            (r"\.(self_attn|mlp)\.(\w+)\.Plora_A\.", r".media.\1.\2.lora_a."),
            (r"\.(self_attn|mlp)\.(\w+)\.Plora_B\.", r".media.\1.\2.lora_b."),
        ),
        tower={
            _FRONT: "tower.",
            "vision_proj.": "projector.",
            **{name: f"learned.{name}" for name in _LEARNED},
        },
        tower_patterns=(*CLIP_TOWER, *TWO_LAYERS),
        ignored=(f"{_FRONT}post_layernorm.",),
        ignored_patterns=(r"\.lora_\w+_[AB]\.weight$",),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        self._is_tiled = any(name in checkpoint.stored for name in _LEARNED)
        super().__init__(checkpoint, tokenizer)
        self._attention_ranks = tuple(_read_rank(checkpoint, f"attention.{layer}") for layer in ("wqkv", "wo"))
        self._has_narrow_qkv = self._attention_ranks[0] != self._attention_ranks[1]
        self._hd: HDTransform | None = None
        self.tokenizes_apart = not self._is_tiled or self._has_narrow_qkv
        if not self._is_tiled:
            self.options = {}  # type: ignore[misc]  # squares have none
            self.pixels = PixelSettings.read(
                self.settings, checkpoint.path, processor="XComposer2SquareProcessor", library=self.library
            )
            return
        self.learned_rows = _LEARNED
        self.projector_options = {"merge": _MERGE, "learned_axes": (4, 3), "projects_learned": True}
        is_4khd = self._has_narrow_qkv
        default = _MAX_TILES_4KHD if is_4khd else _MAX_TILES
        self._hd = HDTransform(
            tile=self.image_size,
            max_tiles=read_count(self.settings, "hd_num", default, most=MAX_TILES, where=checkpoint.path),
            padding="both" if is_4khd else "behind",
            is_capped=not is_4khd,
        )
        if self.grid_side % _MERGE:
            raise CheckpointError(
                f"{checkpoint.path}: a grid of {self.grid_side}² patches cannot be merged {_MERGE} by {_MERGE}"
            )
        self._grid = (self.grid_side // _MERGE, self.grid_side // _MERGE)

    def read_tower(self) -> tuple[bool, int, int]:
        """The side of pictures is that of the table of positions."""
        has_class_token, _, _ = super().read_tower()
        checkpoint, patch = self.checkpoint, self.checkpoint.model_config.vision_config.patch_size
        shape = _shape_of(checkpoint, _POSITIONS)
        side = math.isqrt(max(0, shape[0] - 1))
        if side < 1 or side**2 + 1 != shape[0]:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {_POSITIONS!r} has {shape[0]} positions, which are not those of a square "
                "of patches and one more"
            )
        size = checkpoint.config.get("img_size")
        if not self._is_tiled and size is not None and size != side * patch:
            raise CheckpointError(
                f"{checkpoint.path}: img_size must be {side * patch}, for {side}² positions of {patch} pixels, got "
                f"{str(size)[:40]!r}"
            )
        return has_class_token, side * patch, side

    def backbone(self) -> Backbone:
        qkv, rank = self._attention_ranks
        rows = MediaRowsSpec(rank=rank)
        if self._has_narrow_qkv:
            rows = replace(rows, qkv_rank=qkv, qkv_scale=_NARROW_ALPHA / qkv)
        return replace(super().backbone(), media_rows=rows)

    def find_placeholder(self, modality: Modality) -> tuple[int, str]:
        """The published code has no token at the places of rows, and a text that stands for a picture."""
        token, _ = super().find_placeholder(modality)
        return token, "<ImageHere>"

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        tiles = None if self._hd is None else [self._hd.max_tiles, self._hd.padding, self._hd.is_capped]
        return {"pixels": self.pixels.as_json(), "size": self.image_size, "tiles": tiles}

    def shared_options(self, num_pictures: int) -> Mapping[str, int]:
        is_2d5 = self._hd is not None and self._hd.is_capped
        return {OPTION: _MAX_TILES_OF_SEVERAL} if is_2d5 and num_pictures > 1 else {}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return options if self._hd is None else {**options, OPTION: 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        if self._hd is not None:
            return self._hd.measure(size, options)
        return {"num_tiles": 1, "resized": (self.image_size, self.image_size)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        count = self.grid_side**2 if self._hd is None else len(_arrange(measures["joined"], self._grid))
        return make_expansion(([self.image_token] * count, True))

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        if self._hd is not None:
            return (self._hd.make_chain(size, measures, self.pixels),)
        square = (self.image_size, self.image_size)
        return ((self.pixels.resize(square), Tiles(square)),)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        features = super().preprocess(media, measures)
        return features if self._hd is None else {**features, "rows": _arrange(measures["joined"], self._grid)}

    def largest_size(self) -> tuple[int, int]:
        return (self.image_size, self.image_size) if self._hd is None else self._hd.largest_size()


def _arrange(joined: tuple[int, int], grid: tuple[int, int]) -> Rows:
    """Return the rows of the whole picture and of its (rows, columns) of tiles, each of a grid of this size."""
    whole = number_rows(0, grid)
    lines = join_tiles(whole.size, joined, grid)
    end = np.full(1, _VIEW_END, dtype=np.int32)
    return chain(end_lines(whole, _LINE_END), end, end_lines(lines, _LINE_END))


def _shape_of(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    """Return the shape of a matrix. Raises `CheckpointError` where there is none of that name."""
    stored = checkpoint.stored.get(name)
    if stored is None or len(stored.shape) != 2:
        found = "is missing" if stored is None else f"has the shape {list(stored.shape)}, not two axes"
        raise CheckpointError(f"{checkpoint.path}: tensor {name!r} {found}")
    return stored.shape


def _read_rank(checkpoint: Checkpoint, layer: str) -> int:
    name = f"model.layers.0.{layer}.Plora_A.weight"
    rank = _shape_of(checkpoint, name)[0]
    if rank < 1:
        raise CheckpointError(f"{checkpoint.path}: tensor {name!r} is empty")
    return rank
