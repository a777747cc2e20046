"""DeepSeek-OCR (arXiv 2510.18234) and DeepSeek-OCR 2 (arXiv 2601.20552): a page as a whole and in smaller tiles, few
rows of each, and a mixture of experts with the attention of a Llama."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.layouts.original_deepseek_ocr import FIRST, SECOND
from seesay.errors import CheckpointError
from seesay.processors.media.host_chain import run_chains
from seesay.processors.media.images import tile_grid
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Library, Pad, Size, Tiles
from seesay.vl.bases.arrangement import Rows, chain, end_lines, join_tiles, number_rows
from seesay.vl.bases.pixels import PixelSettings, read_count, read_padding_color, read_processor, read_square
from seesay.vl.bases.sam import read_sam
from seesay.vl.bases.tower_names import CLIP_TOWER, SAM_NECK, SAM_TOWER
from seesay.vl.families import deepseek_vl2
from seesay.vl.family import MAX_TILES, Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.deep_encoder import ClipConfig, QueryConfig

_MARKER = "<image>"
_NEWLINE, _SEPARATOR = -2, -1
"""These learned rows in an arrangement. DeepSeek-OCR 2 has no newline."""
_SHRINKS = 4
"""Patches of a side for each row of a side."""
_OPTION = "max_dynamic_patch"
_ORIGINAL = "DeepseekVLV2Processor"
_PROCESSOR = "DeepseekOcr2ImageProcessor"
_CONSTANTS = {
    FIRST: {"tile_size": 640, "max_patches": 9},
    SECOND: {"tile_size": 768, "max_patches": 6},
}
"""Of the published code, where a checkpoint has its layout."""
_TOWER = "model.vision_tower."
_QUERIES = ("query_768", "query_1024")
_LARGEST_SIDE = 1 << 14


class DeepseekOCR(Family):
    """Features: the whole picture [1, S, S, 3] and its tiles [T, s, s, 3], or frames; the arrangement of their rows;
    and the plan's measures, with `cut` (rows, columns) of the tiles."""

    architectures = (FIRST, "DeepseekOcr2ForConditionalGeneration")
    published = (
        Published(architecture=FIRST, decoder="deepseek_ocr2_text", names=("deepseek-ai/DeepSeek-OCR",)),
        Published(architecture=SECOND, decoder="deepseek_ocr2_text", names=("deepseek-ai/DeepSeek-OCR-2",)),
        Published(
            architecture="DeepseekOcr2ForConditionalGeneration",
            decoder="deepseek_ocr2_text",
            names=("deepseek-community/DeepSeek-OCR-2",),
        ),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: (_OPTION,)}
    weights = WeightMap(
        decoder={
            **{f"model.{name}": name for name in ("embed_tokens.", "layers.", "norm.")},
            "model.language_model.": "",
            "lm_head.": "lm_head.",
        },
        tower={
            "model.sam_model.": "high.",
            "model.vision_model.": "tower.",
            "model.qwen2_model.model.model.": "tower.",
            "model.projector.layers.": "projector.",
            f"{_TOWER}sam_encoder.": "high.",
            f"{_TOWER}vision_encoder.": "tower.",
            "model.multi_modal_projector.": "projector.",
            "model.image_newline": "learned.image_newline",
            "model.view_seperator": "learned.view_separator",
            "model.view_separator": "learned.view_separator",
            **{f"model.qwen2_model.{name}.weight": f"tower.queries.{i}" for i, name in enumerate(_QUERIES)},
            **{f"{_TOWER}{name}_resolution.weight": f"tower.queries.{i}" for i, name in enumerate(_QUERIES)},
        },
        tower_patterns=(
            (r"^tower\.transformer\.", "tower.encoder."),
            (r"^(tower\.layers\..*)\.self_attn\.o_proj\.", r"\1.attn.proj."),
            *CLIP_TOWER,
            *SAM_NECK,
            *SAM_TOWER,
            (r"^high\.(?:net_2|proj\.conv1)\.", "shrink.conv1."),
            (r"^high\.(?:net_3|proj\.conv2)\.", "shrink.conv2."),
        ),
        ignored=("model.vision_model.embeddings.patch_embedding.", "model.vision_model.embeddings.position_ids"),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        where = checkpoint.path
        settings, original = _read_settings(checkpoint)
        library: Library = "torchvision" if original is None else "pillow"
        processor = _PROCESSOR if original is None else _ORIGINAL
        self._pixels = PixelSettings.read(settings, where, processor=processor, library=library)
        self._color = (
            _read_color(settings, where)
            if original is None
            else read_padding_color(settings, where, processor=processor)
        )
        self._is_original = original is not None
        self._has_newline = checkpoint.architecture == FIRST
        sam = checkpoint.model_config.vision_config.sam_config
        expected = {"patch_size": sam.patch_size, "downsample_ratio": _SHRINKS, "image_token": _MARKER}
        for name, value in {**expected, "crop_to_patches": True}.items():
            if (found := settings.get(name, value)) != value:
                raise CheckpointError(f"{where}: processor setting {name} must be {value}, got {str(found)[:40]}")
        self._whole = read_square(settings.get("size", sam.image_size), where, "size")
        side = read_count(settings, "tile_size", 768, most=_LARGEST_SIDE, where=where)
        self._tile = (side, side)
        self._max_tiles = read_count(settings, "max_patches", 6, most=MAX_TILES, where=where)
        self._min_tiles = read_count(settings, "min_patches", 2, most=self._max_tiles, where=where)
        self._patches = tuple(_count_patches(each, sam.patch_size, where) for each in (self._whole, self._tile))
        self._grids = tuple(2 * (-(-count // _SHRINKS),) for count in self._patches)
        self._image_token = self.token_id(_MARKER)
        self._num_queries = () if self._has_newline else _read_tables(self, self._grids)

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: _MARKER}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        tiles = [self._whole, self._tile, self._min_tiles, self._max_tiles]
        return {"pixels": self._pixels.as_json(), "color": self._color, "tiles": tiles, "original": self._is_original}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, _OPTION: 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """A picture that is no larger than a tile is shown as a whole alone, and so are all with `max_dynamic_patch`
        1."""
        own = (size.height, size.width)
        most = options.get(_OPTION, self._max_tiles)
        cut = (0, 0)
        if max(own) > self._tile[0] and most > 1:
            least = min(self._min_tiles, most)
            order = "set" if self._is_original else "columns"
            cut = tile_grid(own, self._tile, min_tiles=least, max_tiles=most, order=order)
        return {
            "num_tiles": 1 + math.prod(cut),
            "cut": cut,
            "resized": tuple(count * side for count, side in zip(cut, self._tile, strict=True))
            if any(cut)
            else self._whole,
            "fitted": (deepseek_vl2.fit if self._is_original else _fit)(own, self._whole),
        }

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self._image_token] * len(self._arrange(measures)), True))

    def _arrange(self, measures: Features) -> Rows:
        """The tiles come before the whole picture. DeepSeek-OCR arranges their rows as one picture."""
        whole, separator = number_rows(0, self._grids[0]), np.full(1, _SEPARATOR, dtype=np.int32)
        cut, grid = measures["cut"], self._grids[1]
        if not any(cut):
            views = [whole]
        elif self._has_newline:
            views = [join_tiles(whole.size, cut, grid), whole]
        else:
            views = [number_rows(whole.size, (math.prod(cut), math.prod(grid))), whole]
        return chain(*(end_lines(view, _NEWLINE) if self._has_newline else view for view in views), separator)

    def num_units(self, measures: Features) -> int:
        whole, tile = (count**2 for count in self._patches)
        return int(whole + tile * (measures["num_tiles"] - 1))

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        fitted = measures["fitted"]
        at = tuple(
            deepseek_vl2.center(length, full) if self._is_original else (full - length) // 2
            for length, full in zip(fitted, self._whole, strict=True)
        )
        whole = (self._pixels.resize(fitted), Pad(self._whole, (at[0], at[1]), self._color), Tiles(self._whole))
        if not any(measures["cut"]):
            return (whole,)
        return whole, (self._pixels.resize(measures["resized"]), Tiles(self._tile))

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        chains = self.chain_frames(media.modality, media.size, measures)
        if self.may_send_frames(media.size, chains):
            made = super().preprocess(media, measures)
        else:
            made = {**measures, "pixels": run_chains(media.frames, chains[:1])}
            if len(chains) > 1:
                made = {**made, "tiles": run_chains(media.frames, chains[1:])}
        return {**made, "rows": self._arrange(measures)}

    def largest_size(self) -> tuple[int, int]:
        return self._tile[0], self._tile[1] * self._max_tiles

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.deep_encoder import DeepConfig, DeepEncoder
        from seesay.encoders.towers.layers import PixelNormalizer

        config, where = self.checkpoint.model_config, f"{self.checkpoint.path}: vision_config"
        vision = config.vision_config
        second = (
            _read_clip(vision.encoder_config)
            if self._has_newline
            else _read_qwen(vision.encoder_config, self._num_queries, f"{where}.encoder_config")
        )
        channels = vision.sam_config.downsample_channels
        if len(channels) != 2 or channels[1] != second.size:
            raise CheckpointError(
                f"{where}.sam_config.downsample_channels must be two numbers, the last one {second.size}, got "
                f"{str(channels)[:40]}"
            )
        tower = DeepConfig(
            sam=read_sam(vision.sam_config, f"{where}.sam_config"),
            inner_size=channels[0],
            second=second,
            out_hidden_size=config.text_config.hidden_size,
            learned_rows=("image_newline", "view_separator") if self._has_newline else ("view_separator",),
        )
        return DeepEncoder(
            self.checkpoint,
            self.weights.tower_name,
            tower,
            (self._whole[0], self._tile[0]),
            PixelNormalizer(**self._pixels.statistics),
            device=device,
            dtype=dtype,
        )


def _read_color(settings: Mapping[str, Any], where: object) -> tuple[int, int, int]:
    """Return the color of the padding in Transformers' layout. Raises `CheckpointError` for one that is none."""
    color = settings.get("background_color", [127, 127, 127])
    if not isinstance(color, list) or len(color) != 3 or not all(type(c) is int and 0 <= c <= 255 for c in color):
        raise CheckpointError(
            f"{where}: processor setting background_color must be three numbers from 0 to 255, got {str(color)[:40]}"
        )
    red, green, blue = color
    return red, green, blue


def _read_settings(checkpoint: Checkpoint) -> tuple[Mapping[str, Any], str | None]:
    """Return the processor's settings, and the architecture whose constants they have; None in Transformers' layout."""
    beside = checkpoint.read_json("processor_config.json") or {}
    settings = {**beside, **read_processor(checkpoint, "image_processor")}
    named = (checkpoint.config.get("architectures") or [""])[0]
    constants = _CONSTANTS.get(named)
    if constants is None:
        return settings, None
    return {**constants, "do_normalize": settings.get("normalize", True), **settings}, named


def _count_patches(square: Size, patch: object, where: object) -> int:
    """Return the patches in a side of a square. Raises `CheckpointError` for one that has none."""
    if square[0] != square[1] or type(patch) is not int or not 0 < patch <= square[0]:
        raise CheckpointError(
            f"{where}: pictures of {square} pixels with patches of {str(patch)[:40]} are not supported: they must be "
            "squares, of which one has a patch at least"
        )
    return square[0] // patch


def _fit(own: Size, whole: Size) -> Size:
    """Return the (height, width) of the whole picture in Transformers' layout."""
    scale = whole[0] / max(own)
    return max(1, round(own[0] * scale)), max(1, round(own[1] * scale))


def _read_clip(vision: Any) -> ClipConfig:
    from seesay.encoders.towers.deep_encoder import ClipConfig
    from seesay.encoders.towers.vit_layers import LayerConfig

    layers = LayerConfig(
        hidden_size=vision.hidden_size,
        num_heads=vision.num_attention_heads,
        intermediate_size=vision.intermediate_size,
        activation=vision.hidden_act,
        norm_eps=vision.layer_norm_eps,
        qkv=("qkv_proj",),
    )
    positions = (vision.image_size // vision.patch_size) ** 2
    return ClipConfig(layers=layers, num_layers=vision.num_hidden_layers, num_positions=positions)


def _read_qwen(vision: Any, num_queries: tuple[int, ...], where: str) -> QueryConfig:
    from seesay.encoders.towers.deep_encoder import QueryConfig

    rope = vision.rope_parameters
    if rope["rope_type"] != "default":
        raise CheckpointError(f"{where}: rope_type must be default, got {str(rope['rope_type'])[:40]!r}")
    if any(kind != "full_attention" for kind in vision.layer_types):
        raise CheckpointError(f"{where}: layer_types must all be full_attention")
    return QueryConfig(
        size=vision.hidden_size,
        num_heads=vision.num_attention_heads,
        num_kv_heads=vision.num_key_value_heads,
        head_dim=getattr(vision, "head_dim", None) or vision.hidden_size // vision.num_attention_heads,
        inner_size=vision.intermediate_size,
        activation=vision.hidden_act,
        norm_eps=vision.rms_norm_eps,
        theta=rope["rope_theta"],
        num_layers=vision.num_hidden_layers,
        num_queries=num_queries,
    )


def _read_tables(family: DeepseekOCR, grids: Sequence[Size]) -> tuple[int, ...]:
    """Return the number of queries in each learned table. Raises `CheckpointError` unless there is one for the rows of
    each of these grids."""
    checkpoint = family.checkpoint
    shapes = {family.weights.tower_name(name): stored.shape for name, stored in checkpoint.stored.items()}
    tables = [shapes.get(f"tower.queries.{index}") for index in range(len(_QUERIES))]
    counts = tuple(shape[0] for shape in tables if shape)
    for grid in grids:
        if (count := math.prod(grid)) not in counts:
            raise CheckpointError(
                f"{checkpoint.path}: the tower makes {count} rows of a square, and has tables of {list(counts)} queries"
            )
    return counts
