"""The base of families whose towers take pictures and videos at about their own size, cut into patches, with positions
in time, height and width.

Pixels stay uint8 until they are on the tower's device: they take a quarter of the memory in caches and transfers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.media.images import MAX_ASPECT_RATIO, smart_resize
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaItem, MediaSize, Modality
from seesay.values.frame_chain import Chain, Patches
from seesay.vl.bases.pixels import PixelSettings, read_processor
from seesay.vl.constants import LOW_DETAIL_PIXELS
from seesay.vl.family import Family, Features, make_expansion
from seesay.vl.weight_map import BARE_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.packed_layout import PackedVisionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSettings:
    """Sizes of one modality. `total_pixels`, when set, is divided equally among the temporal patches of a video.
    `first_limits`, when set, are the least and most pixels of a first resizing, whose result is resized again."""

    pixels: PixelSettings
    min_pixels: int
    max_pixels: int
    total_pixels: int | None
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    first_limits: tuple[int, int] | None = None

    @property
    def factor(self) -> int:
        """Height and width are multiples of this many pixels: the side of one merged token."""
        return self.patch_size * self.merge_size

    @classmethod
    def read(
        cls, settings: Mapping[str, Any], where: object, *, processor: str, default_size: Mapping[str, int]
    ) -> Self:
        """Read the JSON of a `processor` (`PixelSettings.read`); `min_pixels` and `max_pixels` override `size`, as in
        Transformers."""
        size = {**default_size, **(settings.get("size") or {})}
        patch_size, merge_size = settings.get("patch_size", 14), settings.get("merge_size", 2)
        budget = int(settings.get("max_video_tokens", 128000) * (patch_size * merge_size) ** 2 * 0.9)
        return cls(
            pixels=PixelSettings.read(settings, where, processor=processor),
            min_pixels=settings.get("min_pixels") or size["shortest_edge"],
            max_pixels=settings.get("max_pixels") or size["longest_edge"],
            total_pixels=budget if settings.get("cap_pixels_per_frame") else None,
            patch_size=patch_size,
            temporal_patch_size=settings.get("temporal_patch_size", 2),
            merge_size=merge_size,
        )

    @property
    def limits(self) -> list[int | None]:
        """The settings that determine the sizes of frames, as JSON values, for cache keys."""
        return [self.min_pixels, self.max_pixels, self.total_pixels, self.factor, *(self.first_limits or ())]

    def max_pixels_of(self, options: Mapping[str, int]) -> int:
        """Return the most pixels of a picture or frame."""
        return options.get("max_pixels", max(self.max_pixels, options.get("min_pixels", self.min_pixels)))

    def fit_first(self, size: MediaSize) -> tuple[int, int] | None:
        """Return the (height, width) of the first of two resizings; None where there is one alone."""
        if self.first_limits is None:
            return None
        least, most = self.first_limits
        return smart_resize(size.height, size.width, factor=self.factor, min_pixels=least, max_pixels=most)

    def fit(self, size: MediaSize, options: Mapping[str, int]) -> tuple[int, int]:
        """Return the (height, width) that frames are resized to: near their own size, or near `resized_height` and
        `resized_width`. Raises `RequestError` for options that contradict each other."""
        min_pixels = options.get("min_pixels", self.min_pixels)
        max_pixels = self.max_pixels_of(options)
        if "min_pixels" not in options:
            min_pixels = min(min_pixels, max_pixels)
        if min_pixels > max_pixels:
            message = f"min_pixels={min_pixels} is above max_pixels={max_pixels}"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "min_pixels")
        height, width = find_target(size, options)
        if "resized_height" not in options:
            height, width = self.fit_first(size) or (height, width)
        total_pixels = options.get("total_pixels", self.total_pixels)
        if total_pixels is not None:
            share = total_pixels * self.temporal_patch_size // size.num_frames
            max_pixels = max(min(max_pixels, share), int(min_pixels * 1.05))
        return smart_resize(height, width, factor=self.factor, min_pixels=min_pixels, max_pixels=max_pixels)


def find_target(size: MediaSize, options: Mapping[str, int]) -> tuple[int, int]:
    """Return the (height, width) that frames are to be near: `resized_height` and `resized_width`, or their own. Raises
    `RequestError` where one of the two options is missing."""
    if ("resized_height" in options) != ("resized_width" in options):
        message = "resized_height and resized_width go together: give both"
        raise RequestError(ErrorCode.INVALID_REQUEST, message, "resized_height")
    return options.get("resized_height", size.height), options.get("resized_width", size.width)


class DynamicResolutionFamily(Family):
    """Features: patches [P, 3·Tp·P·P] in merge-group order, or frames; the plan's measures, with `grid` (t, h, w) in
    patches; and for a video `seconds_per_grid`, the time between two steps of t."""

    modalities: tuple[Modality, ...] = (Modality.IMAGE, Modality.VIDEO)
    num_position_axes = 3
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {
        Modality.IMAGE: ("min_pixels", "max_pixels", "resized_height", "resized_width"),
        Modality.VIDEO: ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width"),
    }
    default_sizes: ClassVar[Mapping[Modality, Mapping[str, int]]] = {
        Modality.IMAGE: {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
        Modality.VIDEO: {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
    }
    weights = WeightMap(
        decoder={
            **BARE_DECODER,
            "model.": "",
            "language_model.": "",
            "model.language_model.": "",
            "lm_head.": "lm_head.",
        },
        tower={
            "visual.": "",
            "visual.patch_embed.proj.": "patch_embed.",
            "model.visual.": "",
            "model.visual.patch_embed.proj.": "patch_embed.",
        },
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config = checkpoint.model_config
        self.settings = {
            modality: self.read_settings(modality, read_processor(checkpoint, f"{modality.value}_processor"))
            for modality in self.modalities
        }
        vision = config.vision_config
        expected = (vision.patch_size, getattr(vision, "temporal_patch_size", 1), vision.spatial_merge_size)
        for modality, settings in self.settings.items():
            given = (settings.patch_size, settings.temporal_patch_size, settings.merge_size)
            if given != expected:
                raise CheckpointError(
                    f"{checkpoint.path}: the {modality.value} processor makes patches of (size, frames, merge) "
                    f"{given}, config.json's vision_config says {expected}"
                )
        first, *others = (settings.pixels.statistics for settings in self.settings.values())
        if any(other != first for other in others):
            raise CheckpointError(f"{checkpoint.path}: pictures and videos are normalized differently: not supported")
        self.merge_size: int = vision.spatial_merge_size
        self.item_tokens = {modality: self.read_item_tokens(modality) for modality in self.modalities}
        self._markers = {each: "".join(map(self.token_text, tokens)) for each, tokens in self.item_tokens.items()}

    def read_item_tokens(self, modality: Modality) -> tuple[int, int, int]:
        """Return the tokens before, for and behind an item in a prompt that is not expanded."""
        config = self.checkpoint.model_config
        placeholder = config.image_token_id if modality is Modality.IMAGE else config.video_token_id
        return config.vision_start_token_id, placeholder, config.vision_end_token_id

    def read_settings(self, modality: Modality, settings: Mapping[str, object]) -> PatchSettings:
        """Read the JSON of the processor for media of this kind."""
        return PatchSettings.read(
            settings,
            self.checkpoint.path,
            processor=f"Qwen2VL{modality.value.capitalize()}Processor",
            default_size=self.default_sizes[modality],
        )

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {
            modality.value: {
                "pixels": settings.pixels.as_json(),
                "sizes": settings.limits,
                "patch": [settings.patch_size, settings.temporal_patch_size],
            }
            for modality, settings in self.settings.items()
        }

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        settings = self.settings[modality]
        side, merge = settings.patch_size, settings.merge_size
        patches = Patches((side, side), (merge, merge), settings.temporal_patch_size)
        first = settings.fit_first(size)
        before = () if first is None else (settings.pixels.resize(first),)
        return ((*before, settings.pixels.resize(measures["resized"]), patches),)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        features = super().preprocess(media, measures)
        if media.modality is Modality.IMAGE:
            return features
        step = self.settings[media.modality].temporal_patch_size
        return {**features, "seconds_per_grid": _frame_interval_s(media) * step}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        max_pixels = min(LOW_DETAIL_PIXELS, self.settings[modality].max_pixels_of(options))
        if (min_pixels := options.get("min_pixels", 0)) > max_pixels:
            message = f"min_pixels={min_pixels} is above the {max_pixels} pixels that detail 'low' allows"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "min_pixels")
        return {**options, "max_pixels": max_pixels}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        settings = self.settings[modality]
        height, width = settings.fit(size, options)
        steps = -(-size.num_frames // settings.temporal_patch_size)
        grid = (steps, height // settings.patch_size, width // settings.patch_size)
        return {"grid": grid, "num_tiles": 1, "resized": (height, width)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        start, placeholder, end = self.item_tokens[modality]
        num_rows = math.prod(measures["grid"]) // self.merge_size**2
        return make_expansion(([start], False), ([placeholder] * num_rows, True), ([end], False))

    def num_units(self, measures: Features) -> int:
        return math.prod(measures["grid"])

    def time_interval(self, features: Features) -> float:
        """Return the rotary positions between two time steps of an item."""
        return 1.0

    def positions(
        self, token_ids: npt.NDArray[np.int64], items: tuple[MediaItem, ...]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return int64 [3, T] of (time, height, width): text counts up in all three; the rows of a picture form a grid
        that starts at the next position and takes as many positions as its longer side (M-RoPE, arXiv 2409.12191,
        section 2.1). So do the rows of a video, or those between two texts where its expansion has some."""
        positions = np.empty((3, len(token_ids)), dtype=np.int64)
        done, next_position = 0, 0
        highest = -1
        for item, first, stop in _list_runs(items):
            next_position += _fill_text(positions, done, first, next_position)
            _, grid_h, grid_w = item.features["grid"]
            step = (grid_h // self.merge_size, grid_w // self.merge_size)
            shape = ((stop - first) // math.prod(step), *step)
            assert math.prod(shape) == stop - first, "whole time steps must fill neighbouring positions"
            grid = np.indices(shape, dtype=np.int64).reshape(3, -1)
            # float32, as torch multiplies: 0.1 s · 10 / s must truncate to the same whole number.
            grid[0] = (grid[0].astype(np.float32) * np.float32(self.time_interval(item.features))).astype(np.int64)
            positions[:, first:stop] = grid + next_position
            highest = max(highest, int(positions[:, first:stop].max()))
            next_position += max(shape[1:])
            done = stop
        next_position += _fill_text(positions, done, len(token_ids), next_position)
        return positions, max(next_position, highest + 1)

    @abstractmethod
    def tower_config(self) -> PackedVisionConfig:
        """Return the sizes of the tower, from config.json's vision_config."""

    def make_tower_config(self, **own: Any) -> PackedVisionConfig:
        """Return the sizes of a tower: those that all of these families name alike, and a family's `own`."""
        from seesay.encoders.towers.packed_layout import PackedVisionConfig

        vision = self.checkpoint.model_config.vision_config
        return PackedVisionConfig(
            depth=vision.depth,
            num_heads=vision.num_heads,
            patch_dim=vision.in_channels * self.settings[Modality.IMAGE].temporal_patch_size * vision.patch_size**2,
            merge_size=vision.spatial_merge_size,
            activation=vision.hidden_act,
            rope_theta=(getattr(vision, "rope_parameters", None) or {}).get("rope_theta", 10000.0),
            **own,
        )

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.packed_vit import PackedEncoder

        normalizer = PixelNormalizer(**self.settings[Modality.IMAGE].pixels.statistics)
        name_of = self.weights.tower_name
        return PackedEncoder.load(self.tower_config(), normalizer, self.checkpoint, name_of, device=device, dtype=dtype)

    def largest_size(self) -> tuple[int, int] | None:
        settings = self.settings[Modality.IMAGE]
        max_pixels = settings.max_pixels_of({})
        if max_pixels < MAX_ASPECT_RATIO * settings.factor**2:  # a side has no less than `factor`: thin ones have more
            return settings.factor, MAX_ASPECT_RATIO * settings.factor
        rows = max(1, math.isqrt(max_pixels) // settings.factor)
        columns = max(1, max_pixels // (rows * settings.factor**2))
        return rows * settings.factor, columns * settings.factor


def _list_runs(items: tuple[MediaItem, ...]) -> Iterator[tuple[MediaItem, int, int]]:
    """Return the items with the (first, stop) of each run of neighbouring slots."""
    for item in items:
        for run in np.split(item.slots, np.flatnonzero(np.diff(item.slots) != 1) + 1):
            if len(run):
                yield item, int(run[0]), int(run[-1]) + 1


def _fill_text(positions: npt.NDArray[np.int64], start: int, stop: int, first: int) -> int:
    positions[:, start:stop] = np.arange(first, first + stop - start)
    return stop - start


def _frame_interval_s(media: DecodedMedia) -> float:
    """Return the seconds that one frame stands for: duration / N if known, else the mean time between two frames."""
    times = media.timestamps_s
    if media.frame_interval_s > 0:
        return media.frame_interval_s
    if len(times) < 2 or times[-1] <= times[0]:
        return 1.0
    return (times[-1] - times[0]) / (len(times) - 1)
