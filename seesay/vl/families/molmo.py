"""Molmo: the whole picture, then overlapping crops of it, of whose rows those are left out that a neighbour has, too
(arXiv 2409.17146, section 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.images import resize_as_float
from seesay.processors.media.tiles import choose_crops, fit_as_float32
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Pad, Resample
from seesay.vl.bases.arrangement import Rows, chain, number_rows
from seesay.vl.bases.pixels import read_count
from seesay.vl.bases.projected_tower import ProjectedTowerFamily
from seesay.vl.bases.tower_names import MOLMO_TOWER
from seesay.vl.family import MAX_TILES, Features, MediaPlan, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_FRONT, _ADDED = "model.vision_backbone.", "model.transformer.wte.new_embedding"
_NORMS = {
    "qwen2": ("input_layernorm", "post_attention_layernorm"),
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
}
"""The norms of attention and feed-forward: before them, or behind."""
_POOL = 2
_FLOAT_BYTES = 4


def _map_weights(norms: tuple[str, str]) -> WeightMap:
    return WeightMap(
        decoder={
            "model.transformer.blocks.": "layers.",
            "model.transformer.wte.embedding": "embed_tokens.weight",
            _ADDED: "embed_tokens.added",
            "model.transformer.ln_f.": "norm.",
            "model.transformer.ff_out.": "lm_head.",
        },
        tower={
            f"{_FRONT}image_vit.": "tower.",
            f"{_FRONT}image_pooling_2d.": "pooling.",
            f"{_FRONT}image_projector.": "projector.",
            f"{_FRONT}pad_embed": "pad_embed",
        },
        decoder_patterns=(
            (r"\.att_proj\.", ".self_attn.qkv_proj."),
            (r"\.attn_out\.", ".self_attn.o_proj."),
            (r"\.([qk])_norm\.", r".self_attn.\1_norm."),
            (r"\.ff_proj\.", ".mlp.gate_up_proj."),
            (r"\.ff_out\.", ".mlp.down_proj."),
            (r"\.attn_norm\.", f".{norms[0]}."),
            (r"\.ff_norm\.", f".{norms[1]}."),
        ),
        tower_patterns=(*MOLMO_TOWER, (r"^projector\.w2\.", "projector.down_proj.")),
    )


@dataclass(frozen=True)
class Crops:
    """Crops of a picture. Each is a square of `size` pixels and of `grid` patches along a side.

    margins: patches that overlap the crops on the left and above, and those on the other sides; they are pooled `_POOL`
    by `_POOL`, as all are. most: the most crops of a picture, where the request does not say.
    """

    size: int
    grid: int
    margins: tuple[int, int]
    most: int

    @classmethod
    def read(cls, settings: Mapping[str, Any], size: int, grid: int, where: Path) -> Crops:
        """Read the processor's settings. Raises `CheckpointError` for those that are not supported."""
        if grid % _POOL:
            raise CheckpointError(f"{where}: a grid of {grid}² patches cannot be pooled {_POOL} by {_POOL}")
        expected = {
            "base_image_input_size": [size, size],
            "image_padding_mask": True,
            "image_patch_size": size // grid,
            "image_token_length_h": grid // _POOL,
            "image_token_length_w": grid // _POOL,
        }
        for name, value in expected.items():
            if (found := settings.get(name, value)) != value:
                raise CheckpointError(f"{where}: processor setting {name} must be {value}, got {str(found)[:40]}")
        most = read_count(settings, "max_crops", 12, most=MAX_TILES, where=where)
        return cls(size, grid, _read_margins(settings, grid, where), most)

    @property
    def window(self) -> int:
        """The pixels from one crop to the next one."""
        return self.size - self._margin

    @property
    def _margin(self) -> int:
        return sum(self.margins) * (self.size // self.grid)

    def choose(self, size: tuple[int, int], most: int) -> tuple[int, int]:
        """Return the (rows, columns) of crops for a picture of this (height, width)."""
        return choose_crops(size, self.window, self._margin, most)

    def find_canvas(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the (height, width) that these crops cover."""
        return rows * self.window + self._margin, columns * self.window + self._margin

    def arrange(self, cut: tuple[int, int]) -> tuple[Rows, Rows]:
        """Return the rows of the whole picture, and those of the picture that its (rows, columns) of crops make."""
        pooled = (self.grid // _POOL, self.grid // _POOL)
        whole, (rows, columns) = number_rows(0, pooled), cut
        lines = []
        for row in range(rows):
            first = [whole.size * (1 + row * columns + column) for column in range(columns)]
            kept = [
                number_rows(number, pooled)[self._keep(row, rows), self._keep(column, columns)]
                for column, number in enumerate(first)
            ]
            lines.append(np.concatenate(kept, axis=1))
        return whole, np.concatenate(lines)

    def _keep(self, index: int, count: int) -> slice:
        """Return the rows of a crop, along one axis, that are not those of its neighbours."""
        first = 0 if index == 0 else self.margins[0] // _POOL
        side = self.grid // _POOL
        return slice(first, side if index == count - 1 else side - self.margins[1] // _POOL)

    def find_padding(self, cut: tuple[int, int], resized: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Return what is padding of the patches of all tiles (`PooledCropEncoder`). As published, the whole picture has
        what the first crop has, each crop what the next one has, and all patches of the last one are partly padding."""
        patch = self.size // self.grid
        shown = []  # along each axis, the pixels of each crop's patches that lie in the picture
        for start, length, count in zip(_center(resized, self.find_canvas(*cut)), resized, cut, strict=True):
            firsts = np.arange(count)[:, None] * self.window + np.arange(self.grid) * patch
            ends = np.minimum(firsts + patch, start + length)
            shown.append(np.maximum(ends - np.maximum(firsts, start), 0))
        pixels = (shown[0][:, None, :, None] * shown[1][None, :, None, :]).reshape(math.prod(cut), -1)
        is_padding = np.stack([pixels == 0, (pixels > 0) & (pixels < patch**2)], axis=-1)
        last = np.broadcast_to([[False, True]], (1, *is_padding.shape[1:]))
        return np.concatenate([is_padding, last]).astype(np.uint8)


class Molmo(ProjectedTowerFamily):
    """Configuration, processor and model are code beside the weights; none of it is run.

    Features: those of `PooledCropEncoder`, which the host makes, for pixels are float32 from their resizing on; the
    arrangement of the rows; and the plan's measures. The published code takes pictures at the beginning of the prompt
    only, and one at a time; here they may stand anywhere.
    """

    architectures = ("MolmoForCausalLM",)
    published = (
        Published(decoder="qwen2", names=("allenai/Molmo-7B-D-0924", "allenai/Molmo-72B-0924")),
        Published(decoder="olmo2", names=("allenai/Molmo-7B-O-0924",)),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: ("max_crops",)}
    strategies = ("default",)
    processor = "MolmoImageProcessor"
    weights = _map_weights(_NORMS["qwen2"])

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        text_config = checkpoint.text_config
        self.weights = _map_weights(_NORMS[text_config.model_type])
        super().__init__(checkpoint, tokenizer)
        self._parts = {name: self.token_id(f"<im_{name}>") for name in ("start", "end", "col")}
        self._token_row: int = self.image_token - text_config.vocab_size
        if not 0 <= self._token_row < text_config.num_added_tokens:
            raise CheckpointError(
                f"{checkpoint.path}: <im_patch> must be one of the {text_config.num_added_tokens} tokens behind the "
                f"vocabulary of {text_config.vocab_size}, is {self.image_token}"
            )
        if self.pixels.resample == "lanczos":
            raise CheckpointError(
                f"{checkpoint.path}: processor setting resample must be 2 (bilinear) or 3 (bicubic), got 1"
            )
        self._tile = (self.image_size, self.image_size)
        self._crops = Crops.read(self.settings, self.image_size, self.grid_side, checkpoint.path)

    def find_placeholder(self, modality: Modality) -> tuple[int, str]:
        self.token_id("<|image|>")
        return self.token_id("<im_patch>"), "<|image|>"

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {
            "pixels": self.pixels.as_json(),
            "tile": self.image_size,
            "margins": self._crops.margins,
            "max_crops": self._crops.most,
        }

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, "max_crops": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        own = (size.height, size.width)
        rows, columns = self._crops.choose(own, options.get("max_crops", self._crops.most))
        canvas = self._crops.find_canvas(rows, columns)
        return {
            "num_tiles": 1 + rows * columns,
            "cut": (rows, columns),
            "canvas": canvas,
            "resized": fit_as_float32(own, canvas),
            "fitted": fit_as_float32(own, self._tile),
        }

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        pieces: list[tuple[list[int], bool]] = []
        for view in self._crops.arrange(measures["cut"]):
            pieces.append(([self._parts["start"]], False))
            for line in view:
                pieces += [([self.image_token] * len(line), True), ([self._parts["col"]], False)]
            pieces.append(([self._parts["end"]], False))
        return make_expansion(*pieces)

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        """Return the steps of `preprocess`, for the sizes that they have."""
        pairs = ((measures["fitted"], self._tile), (measures["resized"], measures["canvas"]))
        return tuple((self.pixels.resize(fitted), Pad(full, (0, 0), (0, 0, 0))) for fitted, full in pairs)

    def plan_media(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> MediaPlan:
        planned = super().plan_media(modality, size, options)
        return replace(planned, peak_pixels=_FLOAT_BYTES * planned.peak_pixels)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        return {
            **measures,
            "whole": _fit(media, measures["fitted"], self._tile, self.pixels.resample),
            "picture": _fit(media, measures["resized"], measures["canvas"], self.pixels.resample),
            "padding": self._crops.find_padding(measures["cut"], measures["resized"]),
            "rows": chain(*self._crops.arrange(measures["cut"])),
        }

    def largest_size(self) -> tuple[int, int]:
        return self._crops.find_canvas(self._crops.most, 1)

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        import torch

        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.pooled_crops import PooledCropEncoder, PooledCropVit
        from seesay.encoders.towers.vit import VitConfig
        from seesay.encoders.towers.weights import load_tower

        config = self.checkpoint.model_config
        text_config = config.text_config
        tower = VitConfig.of_clip(config.vision_config, has_class_token=True, feature_layers=self._feature_layers)
        with torch.device("meta"):
            model = PooledCropVit(
                tower,
                inner_size=text_config.intermediate_size,
                out_hidden_size=text_config.hidden_size,
                num_added=text_config.num_added_tokens,
                token_row=self._token_row,
            )
        weights = load_tower(model, self.checkpoint, self._used_tower_name, device=device, dtype=dtype)
        normalizer = PixelNormalizer(**self.pixels.statistics)
        return PooledCropEncoder(model, normalizer, window=self._crops.window, weights=weights)

    def _used_tower_name(self, name: str) -> str | None:
        """Return the tower's name of a tensor. The embeddings of added tokens are the decoder's, and used here, too."""
        return "added_tokens" if name == _ADDED else super()._used_tower_name(name)


def _read_margins(settings: Mapping[str, object], grid: int, where: Path) -> tuple[int, int]:
    """Return the patches of a crop that overlap its neighbours, at its left or upper side and at the other one."""
    margins = settings.get("overlap_margins", (4, 4))
    if (
        not isinstance(margins, list | tuple)
        or len(margins) != 2
        or not all(type(each) is int and each >= 0 and each % _POOL == 0 for each in margins)
        or sum(margins) >= grid
    ):
        raise CheckpointError(
            f"{where}: processor setting overlap_margins must be two even numbers of patches, less than {grid} "
            f"together, got {str(margins)[:40]}"
        )
    return margins[0], margins[1]


def _fit(
    media: DecodedMedia, fitted: tuple[int, int], canvas: tuple[int, int], resample: Resample
) -> npt.NDArray[np.float32]:
    """Return a picture in the middle of a black canvas: float32 [H, W, 3]."""
    [pixels] = resize_as_float(media.frames, fitted, resample=resample)
    (top, left), (height, width) = _center(fitted, canvas), fitted
    padded = np.zeros((*canvas, 3), dtype=np.float32)
    padded[top : top + height, left : left + width] = pixels
    return padded


def _center(size: tuple[int, int], canvas: tuple[int, int]) -> tuple[int, int]:
    return (canvas[0] - size[0]) // 2, (canvas[1] - size[1]) // 2
