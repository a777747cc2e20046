"""LFM2-VL (arXiv 2511.23404, section 5): pictures at about their own size through a SigLIP2, whose neighbouring patches
are joined; large ones cut into tiles whose rows and columns are written before them, with the whole picture behind
them. The decoder is an LFM2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.media.images import MAX_ASPECT_RATIO, tile_grid
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Patches, Size, Split
from seesay.vl.bases.pixels import PixelSettings, read_count, read_positive, read_processor
from seesay.vl.bases.tower_names import CLIP_TOWER
from seesay.vl.families.lfm2 import Lfm2
from seesay.vl.family import MAX_TILES, MAX_UNITS, Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.checkpoint.model_config import ModelConfig
    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.packed_layout import PackedVisionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """How large pictures become. patch: pixels of a patch's side; merge: patches of a merge group's. limits: least and
    most merge groups of a whole picture. tiles: least and most of a picture that is cut, of `side` pixels. tolerance:
    how many times the most pixels a picture may have before it is cut, if it `splits`. has_whole: it stands behind its
    tiles."""

    patch: int
    merge: int
    limits: tuple[int, int]
    tiles: tuple[int, int]
    side: int
    splits: bool
    tolerance: float
    has_whole: bool

    @classmethod
    def read(cls, settings: Mapping[str, Any], where: object, *, patch: int, merge: int) -> Self:
        """Raises `CheckpointError` naming a setting that is not supported."""
        for name, value in (("encoder_patch_size", patch), ("downsample_factor", merge)):
            if (found := settings.get(name, value)) != value:
                raise CheckpointError(f"{where}: processor setting {name} must be {value}, got {str(found)[:40]}")

        def count(name: str, default: int, most: int) -> int:
            return read_count(settings, name, default, most=most, where=where)

        tiles = count("min_tiles", 2, MAX_TILES), count("max_tiles", 10, MAX_TILES)
        sizes = cls(
            patch=patch,
            merge=merge,
            limits=(count("min_image_tokens", 64, MAX_UNITS), count("max_image_tokens", 256, MAX_UNITS)),
            tiles=tiles,
            side=count("tile_size", 512, 1 << 14),
            splits=bool(settings.get("do_image_splitting", True)),
            tolerance=read_positive(settings, "max_pixels_tolerance", 2.0, where),
            has_whole=bool(settings.get("use_thumbnail", True)),
        )
        if tiles != (1, 1) and (sizes.side % sizes.unit or not 1 < tiles[0] <= tiles[1]):
            raise CheckpointError(
                f"{where}: tile_size={sizes.side} with min_tiles={tiles[0]}, max_tiles={tiles[1]} is not supported: a "
                f"tile has a multiple of {sizes.unit} pixels, and a picture that is cut has two or more"
            )
        return sizes

    @property
    def unit(self) -> int:
        """Pixels of the side of a merge group."""
        return self.patch * self.merge

    def find_grid(self, num_frames: int, size: Size) -> tuple[int, int, int]:
        return num_frames, size[0] // self.patch, size[1] // self.patch

    def is_large(self, size: Size) -> bool:
        """Return whether a picture has more pixels than one that is not cut may have."""
        height, width = (max(self.patch, round(length / self.unit) * self.unit) for length in size)
        return height * width > self.limits[1] * self.unit**2 * self.tolerance

    def fit(self, size: Size) -> Size:
        """Return the size of the whole picture: multiples of the side of a merge group, within the limits, which a thin
        one exceeds, for no side is shorter than one group."""
        unit, (least, most) = self.unit, (limit * self.unit**2 for limit in self.limits)
        height, width = (max(unit, round(length / unit) * unit) for length in size)
        if height * width > most:
            shrink = math.sqrt(math.prod(size) / most)
            height, width = (max(unit, math.floor(length / shrink / unit) * unit) for length in size)
        elif height * width < least:
            grow = math.sqrt(least / math.prod(size))
            height, width = (math.ceil(length * grow / unit) * unit for length in size)
        return height, width

    def cut(self, size: Size) -> Size:
        """Return the (rows, columns) of the tiles of a picture."""
        least, most = self.tiles
        return tile_grid(size, (self.side, self.side), min_tiles=least, max_tiles=most, order="set")

    def measure(self, size: Size, *, splits: bool) -> Features:
        """Return the measures of a picture."""
        whole = self.fit(size)
        grids: tuple[tuple[int, int, int], ...] = (self.find_grid(1, whole),)
        cut = (0, 0)
        if splits and self.tiles != (1, 1) and self.is_large(size):
            cut = self.cut(size)
            tiles = self.find_grid(math.prod(cut), (self.side, self.side))
            grids = (tiles, *grids) if self.has_whole else (tiles,)
        return {"grids": grids, "cut": cut, "num_tiles": sum(grid[0] for grid in grids), "resized": whole}

    def find_largest(self) -> Size:
        """Return a picture that is cut into the most tiles, and is thin: its whole then has the most patches, too."""
        side = self.side * math.ceil(math.sqrt(self.limits[1] * self.tolerance) * self.unit / self.side)
        return max(
            ((side, side * ratio) for ratio in range(1, MAX_ASPECT_RATIO + 1)),
            key=lambda size: _count_patches(self.measure(size, splits=self.splits)),
        )


def _count_patches(measures: Features) -> int:
    return sum(map(math.prod, measures["grids"]))


class Lfm2VL(Family):
    """Features: patches [P, 3·P·P] in merge-group order, or frames; and the plan's measures, with `grids` (t, h, w) in
    patches, of the tiles and of the whole picture, and the `cut` (rows, columns) of tiles, (0, 0) for none."""

    architectures: ClassVar[tuple[str, ...]] = ("Lfm2VlForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="lfm2", names=("LiquidAI/LFM2-VL-450M", "LiquidAI/LFM2-VL-1.6B", "LiquidAI/LFM2-VL-3B")),
    )
    modalities = (Modality.IMAGE,)
    switches = ("do_image_splitting",)
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {Modality.IMAGE: ("do_image_splitting",)}
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            f"{outer}{name}": new
            for outer in ("", "model.")
            for name, new in (
                ("vision_tower.", "tower."),
                ("vision_tower.vision_model.", "tower."),
                ("multi_modal_projector.", "merger."),
            )
        },
        ignored=("vision_tower.head.", "model.vision_tower.head.", "model.vision_tower.vision_model.head."),
        decoder_patterns=Lfm2.weights.decoder_patterns,
        tower_patterns=(
            *CLIP_TOWER,
            (r"^tower\.norm\.", "merger.norm."),
            (r"^tower\.", ""),
            (r"^pos_embed$", "pos_embed.weight"),
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="Lfm2VlImageProcessor")
        self._sizes = _Sizes.read(
            settings, where, patch=config.vision_config.patch_size, merge=config.downsample_factor
        )
        self._image_token: int = config.image_token_id
        self._markers = {Modality.IMAGE: self.token_text(self._image_token)}
        written = checkpoint.read_json("processor_config.json") or {}
        self._is_framed = bool(written.get("use_image_special_tokens", True))
        named = tokenizer.named_tokens
        self._start = named.get("image_start_token", "<|image_start|>")
        self._end = named.get("image_end_token", "<|image_end|>")
        self._thumbnail = named.get("image_thumbnail_token", "<|img_thumbnail|>")
        self._encode = lru_cache(maxsize=4096)(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False)))

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "sizes": asdict(self._sizes)}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        if options.get("do_image_splitting", False):
            message = "do_image_splitting=true cuts a picture into several tiles, of which detail 'low' allows one"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "do_image_splitting")
        return {**options, "do_image_splitting": False}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        splits = bool(options.get("do_image_splitting", self._sizes.splits))
        return self._sizes.measure((size.height, size.width), splits=splits)

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        rows, columns = measures["cut"]
        *tiles, last = measures["grids"]
        names = [f"<|img_row_{row}_col_{column}|>" for row in range(1, rows + 1) for column in range(1, columns + 1)]
        pieces = [self._write(self._start)]
        for name in names:
            pieces += [self._write(name), self._place(tiles[0] if tiles else last)]
        if tiles or not names:
            pieces += [self._write(self._thumbnail if names else ""), self._place(last)]
        return make_expansion(*pieces, self._write(self._end))

    def _write(self, text: str) -> tuple[list[int], bool]:
        return list(self._encode(text)) if text and self._is_framed else [], False

    def _place(self, grid: tuple[int, int, int]) -> tuple[list[int], bool]:
        """Return the places of the rows of one frame."""
        return [self._image_token] * (grid[1] * grid[2] // self._sizes.merge**2), True

    def num_units(self, measures: Features) -> int:
        return _count_patches(measures)

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        sizes, resize, (rows, columns) = self._sizes, self._pixels.resize, measures["cut"]
        patches = Patches((sizes.patch, sizes.patch), (sizes.merge, sizes.merge), 1)
        whole = (resize(measures["resized"]), patches)
        if not rows:
            return (whole,)
        tiles = (resize((rows * sizes.side, columns * sizes.side)), Split((sizes.side, sizes.side)), patches)
        return (tiles, whole) if len(measures["grids"]) > 1 else (tiles,)

    def largest_size(self) -> tuple[int, int]:
        return self._sizes.find_largest()

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.packed_vit import PackedEncoder

        normalizer = PixelNormalizer(**self._pixels.statistics)
        config, name_of = _make_tower_config(self.checkpoint.model_config), self.weights.tower_name
        return PackedEncoder.load(config, normalizer, self.checkpoint, name_of, device=device, dtype=dtype)


def _make_tower_config(config: ModelConfig) -> PackedVisionConfig:
    from seesay.encoders.towers.packed_layout import JoinedConfig, PackedVisionConfig

    vision = config.vision_config
    return PackedVisionConfig(
        depth=vision.num_hidden_layers,
        hidden_size=vision.hidden_size,
        num_heads=vision.num_attention_heads,
        intermediate_size=vision.intermediate_size,
        out_hidden_size=config.text_config.hidden_size,
        patch_dim=3 * vision.patch_size**2,
        merge_size=config.downsample_factor,
        activation=vision.hidden_act,
        uses_rms_norm=False,
        norm_eps=vision.layer_norm_eps,
        patch_bias=True,
        position_side=math.isqrt(vision.num_patches),
        position_blending="antialiased",
        splits_qkv=True,
        has_rotary=False,
        has_channels_last=True,
        projector=JoinedConfig(
            inner_size=config.projector_hidden_size,
            activation=config.projector_hidden_act,
            has_bias=config.projector_bias,
            norm="layer" if config.projector_use_layernorm else None,
        ),
    )
