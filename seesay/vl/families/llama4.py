"""Llama 4: tiles of a picture, padded to the canvas that it fills best, before the whole picture; a mixture of experts
with attention in chunks (Meta 2025)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Pad, Size, Tiles
from seesay.vl.bases.pixels import PixelSettings, count_patches, read_processor, read_square
from seesay.vl.family import MAX_TILES, Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import LLAMA4_DECODER, NESTED_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_MARKER, _START, _END = "<|image|>", "<|image_start|>", "<|image_end|>"
_BESIDE, _BELOW = "<|tile_x_separator|>", "<|tile_y_separator|>"
_NORM_EPS = 1e-5
_BLACK = (0, 0, 0)


class Llama4(Family):
    """Features: tiles, of which the last is the whole picture unless it is the only one; and the plan's measures, with
    `cut` (rows, columns) of the others, and `fitted`, the (height, width) of the picture on its canvas."""

    architectures = ("Llama4ForConditionalGeneration",)
    published = (
        Published(
            decoder="llama4_text",
            names=("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
        ),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: ("max_dynamic_patch",)}
    weights = WeightMap(
        decoder=NESTED_DECODER,
        decoder_patterns=LLAMA4_DECODER,
        tower={
            "vision_model.": "tower.",
            "vision_model.vision_adapter.mlp.fc1.": "projector.linear_1.",
            "vision_model.vision_adapter.mlp.fc2.": "projector.linear_2.",
            "multi_modal_projector.": "multi_modal_projector.",
        },
        tower_patterns=(
            (r"^tower\.patch_embedding\.linear\.", "tower.patch_embed."),
            (r"^tower\.class_embedding$", "tower.cls_token"),
            (r"^tower\.positional_embedding_vlm$", "tower.pos_embed"),
            (r"^tower\.layernorm_pre\.", "tower.norm_pre."),
            (r"^tower\.layernorm_post\.", "tower.norm."),
            (r"^tower\.model\.layers\.", "tower.blocks."),
            (r"\.input_layernorm\.", ".norm1."),
            (r"\.post_attention_layernorm\.", ".norm2."),
            (r"\.self_attn\.o_proj\.", ".attn.proj."),
            (r"\.self_attn\.", ".attn."),
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="Llama4ImageProcessor")
        vision = config.vision_config
        self._tile: Size = (vision.image_size, vision.image_size)
        if "size" in settings and read_square(settings["size"], where, "size") != self._tile:
            raise CheckpointError(f"{where}: the processor's size {settings['size']} is not the tower's {self._tile}")
        if settings.get("resize_to_max_canvas", False):
            raise CheckpointError(f"{where}: processor setting resize_to_max_canvas must be false, got true")
        self._max_tiles: int = settings.get("max_patches", 16)
        if type(self._max_tiles) is not int or not 1 <= self._max_tiles <= MAX_TILES:
            raise CheckpointError(
                f"{where}: processor setting max_patches must be an integer from 1 to {MAX_TILES}, "
                f"got {str(self._max_tiles)[:40]}"
            )
        self._merge = round(1 / vision.pixel_shuffle_ratio)
        self._grid_side = count_patches(vision, where)
        if self._merge < 1 or self._grid_side % self._merge:
            raise CheckpointError(
                f"{where}: pixel_shuffle_ratio={vision.pixel_shuffle_ratio} does not divide the {self._grid_side} "
                "patches in the side of a tile"
            )
        self._row_token: int = config.image_token_index
        self._tokens = {text: self.token_id(text) for text in (_MARKER, _START, _END, _BESIDE, _BELOW)}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: _MARKER}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "tile": self._tile, "tiles": self._max_tiles}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, "max_dynamic_patch": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        own, side = (size.height, size.width), self._tile[0]
        cut = _pick_canvas(own, options.get("max_dynamic_patch", self._max_tiles), side)
        canvas = (cut[0] * side, cut[1] * side)
        num_tiles = math.prod(cut)
        return {
            "num_tiles": num_tiles + (num_tiles > 1),
            "cut": cut,
            "resized": canvas,
            "fitted": _fit(own, canvas, side),
        }

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        rows = ([self._row_token] * (self._grid_side // self._merge) ** 2, True)
        num_lines, num_columns = measures["cut"]
        pieces = [([self._tokens[_START]], False)]
        for _ in range(num_lines if num_lines * num_columns > 1 else 0):
            for column in range(num_columns):
                pieces += [([self._tokens[_BESIDE]], False), rows] if column else [rows]
            pieces.append(([self._tokens[_BELOW]], False))
        pieces += [([self._tokens[_MARKER]], False), rows, ([self._tokens[_END]], False)]
        return make_expansion(*pieces)

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self._grid_side**2

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        fitted, canvas, tiles = measures["fitted"], measures["resized"], Tiles(self._tile)
        padding = () if fitted == canvas else (Pad(canvas, (0, 0), _BLACK),)
        chain: Chain = (self._pixels.resize(fitted), *padding, tiles)
        return (chain,) if measures["cut"] == (1, 1) else (chain, (self._pixels.resize(self._tile), tiles))

    def largest_size(self) -> tuple[int, int] | None:
        return self._tile[0], self._tile[1] * self._max_tiles

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import RoundedNormalizer
        from seesay.encoders.towers.projected_vit import ProjectorConfig, load_encoder
        from seesay.encoders.towers.vit import RopeConfig, VitConfig
        from seesay.encoders.towers.vit_layers import LayerConfig

        config = self.checkpoint.model_config
        vision = config.vision_config
        layers = LayerConfig(
            hidden_size=vision.hidden_size,
            num_heads=vision.num_attention_heads,
            intermediate_size=vision.intermediate_size,
            activation="gelu",
            norm_eps=_NORM_EPS,
            rotates_neighbours=True,
        )
        grid = (self._grid_side, self._grid_side)
        tower = VitConfig(
            layers=layers,
            image_size=self._tile,
            patch_size=(vision.patch_size, vision.patch_size),
            feature_layers=(vision.num_hidden_layers,),
            has_class_token=True,
            has_patch_bias=False,
            has_input_norm=True,
            has_final_norm=True,
            has_last_class_position=True,
            has_batch_axes=False,
            rope=RopeConfig(
                grid=grid, theta=float(vision.rope_parameters["rope_theta"]), offset=1.0, columns_first=True
            ),
        )
        projector = ProjectorConfig(
            out_hidden_size=config.text_config.hidden_size,
            inner_sizes=(vision.projector_input_dim, vision.projector_output_dim),
            has_bias=False,
            merge=self._merge,
        )
        normalizer, name_of = RoundedNormalizer(**self._pixels.statistics), self.weights.tower_name
        return load_encoder(self.checkpoint, name_of, tower, projector, normalizer, device=device, dtype=dtype)


def _pick_canvas(own: Size, max_tiles: int, side: int) -> Size:
    """Return (rows, columns) of the tiles of `side` pixels, at most so many, of the canvas on which a picture is scaled
    up least, or else down least; of those, the smallest, and the first one in the published order. Scales are float32,
    as published."""
    canvases = _list_canvases(max_tiles)
    sizes = np.array(canvases, dtype=np.float32) * np.float32(side)
    scales = (sizes / np.array(own, dtype=np.float32)).min(axis=1)
    best = scales[scales >= 1].min() if (scales >= 1).any() else scales.max()
    return min((each for each, scale in zip(canvases, scales, strict=True) if scale == best), key=math.prod)


def _list_canvases(max_tiles: int) -> list[Size]:
    """Return all (rows, columns) of at most so many tiles: those of one ratio together, larger ones first."""
    by_ratio: dict[float, list[Size]] = {}
    for count in range(max_tiles, 0, -1):
        for rows in (n for n in range(1, count + 1) if count % n == 0):
            by_ratio.setdefault(rows / (count // rows), []).append((rows, count // rows))
    return [each for group in by_ratio.values() for each in group]


def _fit(own: Size, canvas: Size, side: int) -> Size:
    """Return the (height, width) of a picture that touches its canvas from inside, scaled up to the side of a tile at
    most. As published, what the canvas limits is computed in float32, what the picture or the tile does in float64."""
    limits = [min(max(length, side), full) for length, full in zip(own, canvas, strict=True)]
    vertical, horizontal = (
        limit / length if max(length, side) <= full else np.float32(limit) / np.float32(length)
        for limit, length, full in zip(limits, own, canvas, strict=True)
    )
    if horizontal < vertical:
        return max(1, min(math.floor(own[0] * horizontal), limits[0])), limits[1]
    return limits[0], max(1, min(math.floor(own[1] * vertical), limits[1]))
