"""Ovis 2 (arXiv 2405.20797): pictures cut into tiles behind a view of the whole, whose rows are words of a visual
vocabulary; so are the tokens that stand between tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.images import floored_edge_size, tile_grid
from seesay.processors.media.tiles import fit_covering_grid
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Crop, Library, Tiles, pad_to
from seesay.vl.bases.arrangement import Rows, chain, number_rows
from seesay.vl.bases.pixels import PixelSettings, check_num_rows, count_patches, read_count, read_processor, read_tile
from seesay.vl.bases.tower_names import AIM_TOWER
from seesay.vl.family import MAX_TILES, Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, NESTED_PREFIXES, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_MARKER = "<image>"
_INDICATORS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
_START, _GRID, _COLUMN, _ROW, _END = range(-len(_INDICATORS), 0)
"""Rows of the indicators in an arrangement."""
_OF_AUTHORS = {"crop_to_patches": True, "do_center_crop": False, "max_patches": 9}
"""Constants of the authors' code, beside those of the settings that they read."""
_UNSEEN = (0, 0, 0)
"""Color of padding that the tower takes as 0, whatever its color."""
_IS_HARD = {"softmax": False, "st_argmax": True}


class Ovis2(Family):
    """Features: tiles, of which the first is the whole picture, or frames; the arrangement of their rows; and the
    plan's measures, with `cut` (rows, columns) of the other tiles, (0, 0) for none. In the authors' layout, also the
    `boxes` of the picture in its tiles, around which the tower takes 0."""

    architectures = ("Ovis2ForConditionalGeneration",)
    published = (
        Published(
            decoder="qwen2",
            names=("thisisiron/Ovis2-1B-hf", "thisisiron/Ovis2-2B-hf", "thisisiron/Ovis2-8B-hf"),
            architecture="Ovis2ForConditionalGeneration",
        ),
        Published(
            decoder="qwen2",
            names=("AIDC-AI/Ovis2-1B", "AIDC-AI/Ovis2-8B", "AIDC-AI/Ovis2-34B"),
            architecture="Ovis",
        ),
    )
    modalities = (Modality.IMAGE,)
    markers = {Modality.IMAGE: _MARKER}
    options = {Modality.IMAGE: ("max_dynamic_patch",)}
    weights = WeightMap(
        decoder={**NESTED_DECODER, "llm.model.": "", "llm.lm_head.": "lm_head."},
        tower={
            **{prefix + "vision_tower.transformer.": "tower." for prefix in NESTED_PREFIXES},
            **{
                prefix + f"vision_tower.{name}": name
                for prefix in NESTED_PREFIXES
                for name in ("head_linear.", "head_norm.")
            },
            **{prefix + "visual_embeddings_table.": "visual_embeddings_table." for prefix in NESTED_PREFIXES},
            "visual_tokenizer.backbone.": "tower.",
            "visual_tokenizer.head.0.": "head_linear.",
            "visual_tokenizer.head.1.": "head_norm.",
            "vte.": "visual_embeddings_table.",
        },
        tower_patterns=AIM_TOWER,
        ignored=(
            *(prefix + "vision_tower.transformer.embeddings.position_ids" for prefix in NESTED_PREFIXES),
            "visual_tokenizer.backbone.trunk.post_trunk_norm.",
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        vision, settings = config.vision_config, read_processor(checkpoint, "image_processor")
        self._is_original = not getattr(config, "has_media_tokens", True)
        if self._is_original:  # of CLIP's settings, the authors' code takes the size of the crop and crops nothing
            settings = {**settings, **_OF_AUTHORS, "size": settings.get("crop_size", vision.image_size)}
        library: Library = "pillow" if self._is_original else "torchvision"
        self._pixels = PixelSettings.read(settings, where, processor="Ovis2ImageProcessor", library=library)
        self._tile = read_tile(settings, vision.image_size, where, default=384)
        if settings.get("do_center_crop", False):
            raise CheckpointError(f"{where}: processor setting do_center_crop=true is not supported")
        most = read_count(settings, "max_patches", 12, most=MAX_TILES, where=where)
        self._max_tiles = most if settings.get("crop_to_patches", False) else 1
        self._min_tiles = read_count(settings, "min_patches", 1, most=MAX_TILES, where=where)
        self._covers = bool(settings.get("use_covering_area_grid", True))
        self._grid = count_patches(vision, where)
        self._stride: int = vision.hidden_stride
        if self._grid % self._stride:
            raise CheckpointError(
                f"{where}: vision_config.hidden_stride={self._stride} does not divide the {self._grid} patches in the "
                "side of a tile"
            )
        self._num_rows = (self._grid // self._stride) ** 2
        check_num_rows(checkpoint, "image_seq_length", self._num_rows)
        self._image_token: int = config.image_token_id
        if self._is_original:  # has no tokens: the last of the vocabulary stands there, which is not looked up
            self._image_token = config.text_config.vocab_size - 1
            self._indicators = [self._image_token] * len(_INDICATORS)
            return
        self.token_text(self._image_token)
        self._indicators = [self.token_id(text) for text in _INDICATORS]
        if self._indicators != list(config.visual_indicator_token_ids):
            raise CheckpointError(
                f"{where}: visual_indicator_token_ids must be {self._indicators}, those of {', '.join(_INDICATORS)}, "
                f"got {str(config.visual_indicator_token_ids)[:80]}"
            )

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        tiles = [self._min_tiles, self._max_tiles, self._covers, self._is_original]
        return {"pixels": self._pixels.as_json(), "tile": self._tile, "tiles": tiles}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, "max_dynamic_patch": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        rows, columns = self._choose_grid((size.height, size.width), options.get("max_dynamic_patch", self._max_tiles))
        is_cut = rows * columns > 1
        return {
            "num_tiles": rows * columns + is_cut,
            "cut": (rows, columns) if is_cut else (0, 0),
            "resized": (rows * self._tile[0], columns * self._tile[1]),
        }

    def _choose_grid(self, size: tuple[int, int], max_tiles: int) -> tuple[int, int]:
        """Return the (rows, columns) of tiles."""
        if max_tiles == 1:
            return 1, 1
        if self._is_original:
            return fit_covering_grid(size, self._tile[0], max_tiles)
        if self._covers:
            # Transformers takes the rows that were chosen for columns, and the columns for rows.
            return fit_covering_grid(size, self._tile[0], max_tiles)[::-1]
        return tile_grid(size, self._tile, min_tiles=min(self._min_tiles, max_tiles), max_tiles=max_tiles)

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        rows = self._arrange(measures).tolist()
        return make_expansion(([self._indicators[row] if row < 0 else self._image_token for row in rows], True))

    def _arrange(self, measures: Features) -> Rows:
        rows, columns = measures["cut"]
        tiles = [number_rows(index * self._num_rows, (1, self._num_rows)) for index in range(1 + rows * columns)]
        parts = [_single(_START), tiles[0], _single(_GRID)]
        for index, tile in enumerate(tiles[1:], start=1):
            parts.append(tile)
            if index % columns:
                parts.append(_single(_COLUMN))
            elif index < rows * columns:
                parts.append(_single(_ROW))
        return chain(*parts, _single(_END))

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self._grid**2

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        if self._is_original:
            return _Parts((size.height, size.width), measures["cut"], self._tile).chain(self._pixels)
        resize, tiles = self._pixels.resize, Tiles(self._tile)
        whole = (resize(self._tile), tiles)
        return (whole, (resize(measures["resized"]), tiles)) if measures["cut"] != (0, 0) else (whole,)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        made = {**super().preprocess(media, measures), "rows": self._arrange(measures)}
        if self._is_original:
            parts = _Parts((media.size.height, media.size.width), measures["cut"], self._tile)
            made["boxes"] = parts.find_boxes()
        return made

    def largest_size(self) -> tuple[int, int] | None:
        """A long picture has the most tiles, in either direction."""
        return self._tile[0], self._tile[1] * self._max_tiles

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.ovis import VisualVocabulary, load_ovis
        from seesay.encoders.towers.vit import VitConfig
        from seesay.encoders.towers.vit_layers import QKV, LayerConfig

        config, where = self.checkpoint.model_config, self.checkpoint.path
        vision = config.vision_config
        if vision.qkv_bias != vision.mlp_bias:
            raise CheckpointError(f"{where}: qkv_bias={vision.qkv_bias} with another mlp_bias is not supported")
        if vision.tokenize_function not in _IS_HARD:
            raise CheckpointError(
                f"{where}: tokenize_function must be {' or '.join(_IS_HARD)}, got "
                f"{str(vision.tokenize_function)[:40]!r}"
            )
        if vision.num_visual_indicator_tokens != len(_INDICATORS) or vision.vocab_size <= len(_INDICATORS):
            raise CheckpointError(
                f"{where}: num_visual_indicator_tokens={vision.num_visual_indicator_tokens} of vocab_size="
                f"{vision.vocab_size} is not supported: it must be {len(_INDICATORS)} of more"
            )
        layers = LayerConfig(
            hidden_size=vision.hidden_size,
            num_heads=vision.num_attention_heads,
            intermediate_size=vision.intermediate_size,
            activation=vision.hidden_act,
            norm_eps=vision.rms_norm_eps,
            has_qkv_bias=vision.qkv_bias,
            has_biases=vision.mlp_bias,
            uses_rms_norm=True,
            is_gated=True,
            qkv=("qkv",) if self._is_original else QKV,
        )
        tower = VitConfig(
            layers=layers,
            image_size=self._tile,
            patch_size=(vision.patch_size, vision.patch_size),
            feature_layers=(vision.num_hidden_layers,),
            has_class_token=False,
            has_final_norm=not self._is_original,  # the authors take what lies before it
            has_rms_ends=True,
            has_batch_axes=self._is_original,
        )
        vocabulary = VisualVocabulary(
            num_words=vision.vocab_size,
            num_indicators=len(_INDICATORS),
            stride=self._stride,
            is_hard=_IS_HARD[vision.tokenize_function],
        )
        return load_ovis(
            self.checkpoint,
            self.weights.tower_name,
            tower,
            vocabulary,
            PixelNormalizer(**self._pixels.statistics),
            hidden_size=config.text_config.hidden_size,
            device=device,
            dtype=dtype,
        )


@dataclass(frozen=True)
class _Parts:
    """A picture of this size (height, width) as the authors cut it into (rows, columns): the whole and each part are
    fitted into the middle of a tile. The last row and column have what is left of the picture."""

    size: tuple[int, int]
    cut: tuple[int, int]
    tile: tuple[int, int]

    def chain(self, pixels: PixelSettings) -> tuple[Chain, ...]:
        chains: list[Chain] = []
        for at, part in self._list():
            fitted = self._fit(part)
            crop = () if part == self.size else (Crop(part, at),)
            padding = pad_to(fitted, self.tile, _UNSEEN)
            chains.append((*crop, pixels.resize(fitted), *padding, Tiles(self.tile)))
        return tuple(chains)

    def find_boxes(self) -> npt.NDArray[np.int32]:
        """Return top, left, bottom and right of the picture in each tile: int32 [tiles, 4]."""
        fitted = np.array([self._fit(part) for _, part in self._list()])
        at = (np.array(self.tile) - fitted) // 2
        return np.concatenate((at, at + fitted), axis=1).astype(np.int32)

    def _fit(self, part: tuple[int, int]) -> tuple[int, int]:
        return floored_edge_size(*part, self.tile[0], least=1)

    def _list(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Return the place (top, left) and the size of the whole picture, and of each part of it, row by row."""
        yield (0, 0), self.size
        rows, columns = self.cut
        for row in range(rows):
            for column in range(columns):
                height, width = self.size[0] // rows, self.size[1] // columns
                top, left = row * height, column * width
                last_height = self.size[0] - top if row == rows - 1 else height
                last_width = self.size[1] - left if column == columns - 1 else width
                yield (top, left), (last_height, last_width)


def _single(row: int) -> Rows:
    return np.full(1, row, dtype=np.int32)
