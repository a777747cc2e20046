"""Gemma 3 with pictures (arXiv 2503.19786): each picture is a square of few rows, which see each other in the decoder;
long pictures may be shown as crops, too (pan and scan)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Crop, Tiles
from seesay.vl.bases.pixels import PixelSettings, count_patches, read_processor, read_tile
from seesay.vl.bases.tower_names import CLIP_TOWER
from seesay.vl.family import Backbone, Family, Features, Wording, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, NESTED_PREFIXES, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_TOWERS = ("vision_tower.", "vision_tower.vision_model.")
_BEFORE_CROPS, _BETWEEN_CROPS = "\n\n and here are some crops to help you see better \n\n", "\n\n \n\n"
_PAN_AND_SCAN: Mapping[str, Any] = {
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
"""Options of a picture, and what the published processor takes where its file has null."""


class Gemma3(Family):
    """Features: tiles, of which the first is the whole picture, or frames; and the plan's measures, with `crops` (rows,
    columns)."""

    architectures = ("Gemma3ForConditionalGeneration",)
    published = (
        Published(
            decoder="gemma3_text",
            names=("google/gemma-3-4b-it", "google/gemma-3-12b-it", "google/gemma-3-27b-it"),
        ),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: tuple(_PAN_AND_SCAN)}
    switches = ("do_pan_and_scan",)
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            **{prefix + tower: "tower." for prefix in NESTED_PREFIXES for tower in _TOWERS},
            **{prefix + "multi_modal_projector.": "projector." for prefix in NESTED_PREFIXES},
        },
        tower_patterns=CLIP_TOWER,
        ignored=tuple(
            prefix + tower + name
            for prefix in NESTED_PREFIXES
            for tower in _TOWERS
            for name in ("embeddings.position_ids", "head.")
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        vision = config.vision_config
        side = count_patches(vision, where)
        rows = math.isqrt(config.mm_tokens_per_image)
        if vision.model_type != "siglip_vision_model" or rows**2 != config.mm_tokens_per_image or side % rows:
            raise CheckpointError(
                f"{where}: {config.mm_tokens_per_image} tokens of {side}² patches of a {vision.model_type} are not "
                "supported: it must be squares of a siglip_vision_model's"
            )
        self._num_patches, self._num_rows, self._pool = side**2, rows**2, side // rows
        settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="Gemma3ImageProcessor")
        self._tile = read_tile(settings, vision.image_size, where, default=vision.image_size)
        self._pan_and_scan = {
            name: default if settings.get(name) is None else settings[name] for name, default in _PAN_AND_SCAN.items()
        }
        self._start: int = config.boi_token_index
        self._end: int = config.eoi_token_index
        self._image_token: int = config.image_token_index
        self._markers = {Modality.IMAGE: self.token_text(self._start)}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "tile": self._tile, "pan_and_scan": self._pan_and_scan}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, "do_pan_and_scan": 0}

    def backbone(self) -> Backbone:
        return replace(super().backbone(), media_run=self._num_rows)

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        crops = _plan_crops(size, {**self._pan_and_scan, **options})
        return {"num_tiles": 1 + math.prod(crops), "crops": crops, "resized": self._tile}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        """Text between pictures stands between special tokens: it is tokenized by itself."""
        picture = (
            ([self._start], False),
            ([self._image_token] * self._num_rows, True),
            ([self._end], False),
        )
        num_crops = measures["num_tiles"] - 1
        first, between = ((self.tokenizer.encode(text), False) for text in (_BEFORE_CROPS, _BETWEEN_CROPS))
        crops = [*(first, *picture), *(between, *picture) * (num_crops - 1)] if num_crops else []
        return make_expansion(*picture, *crops)

    def word(self, modality: Modality, measures: Features | None) -> Wording | None:
        has_crops = measures is not None and measures["num_tiles"] > 1
        before = "Here is the original image \n\n" if has_crops else "\n\n"
        return Wording(before=before, marker=self._markers[modality], after="\n\n")

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self._num_patches

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        view = (self._pixels.resize(self._tile), Tiles(self._tile))
        rows, columns = measures["crops"]
        if not rows:
            return (view,)
        height, width = math.ceil(size.height / rows), math.ceil(size.width / columns)
        places = [(row * height, column * width) for row in range(rows) for column in range(columns)]
        return (view, *((Crop((height, width), place), *view) for place in places))

    def largest_size(self) -> tuple[int, int] | None:
        if not self._pan_and_scan["do_pan_and_scan"]:
            return self._tile
        side = self._pan_and_scan["pan_and_scan_min_crop_size"]
        return side, side * self._pan_and_scan["pan_and_scan_max_num_crops"]

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        import torch

        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.projected_vit import PooledVit, make_encoder
        from seesay.encoders.towers.vit import VitConfig
        from seesay.encoders.towers.weights import load_tower

        config = self.checkpoint.model_config
        vision = config.vision_config
        sizes = VitConfig.of_clip(
            vision, has_class_token=False, feature_layers=(vision.num_hidden_layers,), has_final_norm=True
        )
        hidden_size = config.text_config.hidden_size
        with torch.device("meta"):
            model = PooledVit(sizes, out_hidden_size=hidden_size, pool=self._pool)
        weights = load_tower(model, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype)
        return make_encoder(model, PixelNormalizer(**self._pixels.statistics), hidden_size, weights)


def _plan_crops(size: MediaSize, chosen: Mapping[str, Any]) -> tuple[int, int]:
    """Return the (rows, columns) of crops along the longer side of a picture; (0, 0) without any."""
    longer, shorter = max(size.height, size.width), min(size.height, size.width)
    least = chosen["pan_and_scan_min_crop_size"]
    if not chosen["do_pan_and_scan"] or longer / shorter < chosen["pan_and_scan_min_ratio_to_activate"]:
        return 0, 0
    count = max(2, min(longer // least, math.floor(longer / shorter + 0.5)))
    count = min(chosen["pan_and_scan_max_num_crops"], count)
    length = math.ceil(longer / count)
    if min(length, shorter) < least:
        return 0, 0
    if length * (count - 1) >= longer:
        message = f"pan_and_scan_min_crop_size={least} cuts {longer} pixels into {count} crops, one of them empty"
        raise RequestError(ErrorCode.INVALID_REQUEST, message, "pan_and_scan_min_crop_size")
    return (1, count) if size.width >= size.height else (count, 1)
