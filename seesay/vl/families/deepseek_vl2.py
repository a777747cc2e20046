"""DeepSeek-VL2 (arXiv 2412.10302): the whole picture, then tiles of it at the one of several resolutions that shows
most of it, and a mixture of experts that attends to latent rows, but for the smallest model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.tiles import select_resolution
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Pad, Tiles
from seesay.vl.bases.any_resolution import is_made_of_tiles
from seesay.vl.bases.arrangement import Rows, chain, end_lines, join_tiles, number_rows
from seesay.vl.bases.pixels import PixelSettings, count_patches, read_padding_color, read_processor
from seesay.vl.family import MAX_TILES, Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_MARKER = "<image>"
_LEARNED = ("image_newline", "view_seperator")  # as published
_NEWLINE, _SEPARATOR = -2, -1
"""These rows in an arrangement."""
_MERGE = 2
_MOST_CUT = 2
"""Pictures of a prompt with more of them are not cut."""
_RESOLUTIONS = "candidate_resolutions"
_PROCESSOR = "DeepseekVLV2Processor"


class DeepseekVL2(Family):
    """Configuration, processor and model are code beside the weights; none of it is run.

    Features: tiles [T, S, S, 3], S being the tower's `image_size`, of which the first is the whole picture, or frames;
    the arrangement of their rows; and the plan's measures, with `cut` (rows, columns) of the other tiles.
    """

    architectures = ("DeepseekVLV2ForCausalLM",)
    published = (
        Published(decoder="deepseek_ocr2_text", names=("deepseek-ai/deepseek-vl2-tiny",)),
        Published(decoder="deepseek_v2", names=("deepseek-ai/deepseek-vl2-small",)),
        Published(decoder="deepseek_v3", names=("deepseek-ai/deepseek-vl2",)),
    )
    modalities = (Modality.IMAGE,)
    markers = {Modality.IMAGE: _MARKER}
    options = {Modality.IMAGE: ("max_dynamic_patch",)}
    weights = WeightMap(
        decoder={"language.model.": "", "language.lm_head.": "lm_head."},
        tower={
            "vision.": "tower.",
            "vision.patch_embed.proj.": "tower.patch_embed.",
            "projector.layers.0.": "projector.linear_1.",
            "projector.layers.2.": "projector.linear_2.",
            **{name: f"learned.{name}" for name in _LEARNED},
        },
        ignored=("vision.attn_pool.",),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = _read_settings(checkpoint)
        self._pixels = PixelSettings.read(settings, where, processor=_PROCESSOR, library="pillow")
        self._color = read_padding_color(settings, where, processor=_PROCESSOR)
        vision = config.vision_config
        side = vision.image_size
        self._tile: tuple[int, int] = (side, side)
        self._grid_side = count_patches(vision, where)
        self._grid = (-(-self._grid_side // _MERGE),) * 2
        expected = {"patch_size": vision.patch_size, "downsample_ratio": _MERGE, "image_token": _MARKER}
        for name, value in expected.items():
            if (found := settings.get(name, value)) != value:
                raise CheckpointError(f"{where}: processor setting {name} must be {value}, got {str(found)[:40]}")
        self._resolutions = _read_resolutions(settings, side, where)
        self._is_whole_first = config.global_view_pos == "head"
        self._image_token = self.token_id(_MARKER)

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        resolutions = {"tile": self._tile, "resolutions": self._resolutions}
        return {"pixels": self._pixels.as_json(), "color": self._color, **resolutions}

    def shared_options(self, num_pictures: int) -> Mapping[str, int]:
        return {"max_dynamic_patch": 1} if num_pictures > _MOST_CUT else {}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, "max_dynamic_patch": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """With `max_dynamic_patch` a picture is cut into at most so many tiles, beside the whole picture; 1 shows the
        whole picture twice, as the published code does."""
        most, area = options.get("max_dynamic_patch", MAX_TILES), math.prod(self._tile)
        allowed = [each for each in self._resolutions if math.prod(each) // area <= most] or [self._tile]
        own = (size.height, size.width)
        canvas = select_resolution(own, allowed)
        cut = (canvas[0] // self._tile[0], canvas[1] // self._tile[1])
        return {
            "num_tiles": 1 + math.prod(cut),
            "cut": cut,
            "resized": canvas,
            "fitted": fit(own, canvas),
            "whole": fit(own, self._tile),
        }

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self._image_token] * len(self._arrange(measures)), True))

    def _arrange(self, measures: Features) -> Rows:
        whole = number_rows(0, self._grid)
        views = [whole, join_tiles(whole.size, measures["cut"], self._grid)]
        first, last = (end_lines(view, _NEWLINE) for view in (views if self._is_whole_first else views[::-1]))
        return chain(first, number_rows(_SEPARATOR, (1, 1)), last)

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self._grid_side**2

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        pairs = ((measures["whole"], self._tile), (measures["fitted"], measures["resized"]))
        return tuple(
            (
                self._pixels.resize(fitted),
                Pad(canvas, (center(fitted[0], canvas[0]), center(fitted[1], canvas[1])), self._color),
                Tiles(self._tile),
            )
            for fitted, canvas in pairs
        )

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        return {**super().preprocess(media, measures), "rows": self._arrange(measures)}

    def largest_size(self) -> tuple[int, int]:
        return max(self._resolutions, key=math.prod)

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from dataclasses import replace

        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.projected_vit import ProjectorConfig, load_encoder
        from seesay.encoders.towers.vit import VitConfig

        config = self.checkpoint.model_config
        tower = VitConfig.of_clip(
            config.vision_config,
            has_class_token=False,
            feature_layers=(config.vision_config.num_hidden_layers,),
            has_final_norm=True,
            has_batch_axes=True,
        )
        tower = replace(tower, layers=replace(tower.layers, qkv=("qkv",)))
        projector = ProjectorConfig(
            out_hidden_size=config.text_config.hidden_size,
            merge=_MERGE,
            pads_grid=True,
            joins_by_channel=True,
            learned_rows=_LEARNED,
        )
        normalizer, name_of = PixelNormalizer(**self._pixels.statistics), self.weights.tower_name
        return load_encoder(self.checkpoint, name_of, tower, projector, normalizer, device=device, dtype=dtype)


def _read_settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the processor's settings, which are published beside those of the tokenizer in processor_config.json."""
    settings = read_processor(checkpoint, "image_processor")
    if _RESOLUTIONS not in settings:
        settings = {**settings, **(checkpoint.read_json("processor_config.json") or {})}
    return {"do_normalize": settings.get("normalize", True), **settings}


def _read_resolutions(settings: Mapping[str, object], side: int, where: object) -> list[tuple[int, int]]:
    """Return the (height, width) at which pictures are cut, of [width, height]. Raises `CheckpointError` for others
    than whole tiles, of which the first is as wide as one."""
    given: Any = settings.get(_RESOLUTIONS)
    for each in given if isinstance(given, list) and given else [given]:
        if not is_made_of_tiles(each, (side, side)):
            raise CheckpointError(
                f"{where}: processor setting {_RESOLUTIONS} must be a list of [width, height] of 1 to {MAX_TILES} "
                f"tiles of {side} pixels, got {str(each)[:80]}"
            )
    if given[0][0] != side:
        raise CheckpointError(f"{where}: the first of {_RESOLUTIONS} must be {side} pixels wide, got {given[0][0]}")
    return [(height, width) for width, height in given]


def fit(size: tuple[int, int], canvas: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) of a picture that touches `canvas` from inside: Pillow's rule, which rounds halves to
    even numbers. A side has one pixel at least; the published code cannot take pictures that are thinner."""
    (height, width), (full_height, full_width) = size, canvas
    if width / height > full_width / full_height:
        return max(1, round(height / width * full_width)), full_width
    return full_height, max(1, round(width / height * full_height))


def center(length: int, full: int) -> int:
    """Return where the middle part begins: halves are rounded to even numbers."""
    return round((full - length) * 0.5)
