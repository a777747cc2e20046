"""MiniCPM-V 2.5, 2.6, 4 and 4.5: a picture as a whole and in slices, each of which becomes the same number of rows; in
4.5 several frames of a video do so together (arXiv 2509.18154, section 2.1)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.vl.bases.pixels import PixelSettings, read_count, read_processor
from seesay.vl.bases.sliced import SlicedFamily
from seesay.vl.bases.tower_names import CLIP_TOWER
from seesay.vl.family import MAX_TILES, Features, Wording, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap, is_layer_above

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_HEAD_SIZE = 128
_SPELLINGS = {
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "im_id_start": "<image_id>",
    "im_id_end": "</image_id>",
    "unk": "<unk>",
}
_VIDEO_MARKER = "<video>./</video>"
_SAMPLING = MappingProxyType({"fps": 3, "min_frames": 1, "max_frames": 540})
_MAX_PACKS, _USUAL_PACKING, _MAX_PACKING = 180, 3, 6
"""Packs that a video is to have at most; frames in a pack, as many as there must be for that; and those that a request
may ask for."""
_TIME_STEP_S = 0.1


class MiniCPMV(SlicedFamily):
    """Configuration, processor and model are code beside the weights; none of it is run.

    Features have more in 2.5: `padded`, the number of patches to which each slice is padded. Of a video: the patches of
    its frames, and `packs`, the places in time of the frames of each pack.
    """

    architectures = ("MiniCPMV",)
    published = (
        Published(decoder="llama", names=("openbmb/MiniCPM-Llama3-V-2_5", "openbmb/MiniCPM-V-4")),
        Published(decoder="qwen2", names=("openbmb/MiniCPM-V-2_6",)),
        Published(decoder="qwen3", names=("openbmb/MiniCPM-V-4_5",)),
    )
    modalities: tuple[Modality, ...] = (Modality.IMAGE,)
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {**SlicedFamily.options, Modality.VIDEO: ("force_packing",)}
    weights = WeightMap(
        decoder={"llm.model.": "", "llm.lm_head.": "lm_head."},
        tower={"vpm.": "tower.", "resampler.": "resampler."},
        tower_patterns=CLIP_TOWER,
        ignored=("resampler.pos_embed", "resampler.temporal_pos_embed"),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self.pixels = PixelSettings.read(settings, where, processor="MiniCPMVImageProcessor", library="pillow")
        self.side = read_count(settings, "scale_resolution", 448, most=1 << 14, where=where)
        self.max_slices = read_count(settings, "max_slice_nums", 9, most=MAX_TILES, where=where)
        self.patch: int = config.vision_config.patch_size
        self._num_queries: int = config.query_num
        is_new = config.version != "2.5"
        self.uses_id = bool(settings.get("use_image_id", is_new))
        self._check_supported(settings)
        self._spell = {name: str(settings.get(name, usual)) for name, usual in _SPELLINGS.items()}
        self.tags = self._spell["im_id_start"], self._spell["im_id_end"]
        self._ids = {name: self.token_id(self._spell[name]) for name in _SPELLINGS if is_new or "_id_" not in name}
        self._markers = {Modality.IMAGE: f"{self._spell['im_start']}./{self._spell['im_end']}"}
        # Since 2.6 slices have tags of their own; 2.5 has those of pictures inside of one pair of slice tags.
        self._slice_tags = ("slice_start", "slice_end") if is_new else ("im_start", "im_end")
        self._outer_tags = () if is_new else ("slice_start", "slice_end")
        self._has_lines, self._pads = not is_new, not is_new and config.batch_vision_input
        first, last = (self._spell[name] for name in self._slice_tags)
        self._line_break = tokenizer.encode(f"{last}\n{first}")[1:-1]
        self._pack_break = tokenizer.encode(f"{self._spell['im_end']}\n{self._spell['im_start']}")[1:-1]
        if config.version == "4.5":
            self.modalities = (Modality.IMAGE, Modality.VIDEO)
            self.default_sampling = _SAMPLING
            self._markers[Modality.VIDEO] = _VIDEO_MARKER

    def _check_supported(self, settings: Mapping[str, object]) -> None:
        where = self.checkpoint.path
        expected = {"patch_size": self.patch, "image_feature_size": self._num_queries, "slice_mode": True}
        for name, value in expected.items():
            if settings.get(name, value) != value:
                raise CheckpointError(f"{where}: processor setting {name} must be {value}, got {settings[name]!r}")
        hidden_size = self.checkpoint.model_config.text_config.hidden_size
        if hidden_size % _HEAD_SIZE:
            raise CheckpointError(
                f"{where}: hidden_size={hidden_size} is not a multiple of {_HEAD_SIZE}, the resampler's head"
            )

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def spellings(self) -> Mapping[Modality, str]:
        texts = {modality: re.escape(marker) for modality, marker in self._markers.items()}
        return {modality: rf"\({text}\)|{text}" for modality, text in texts.items()}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        if modality is Modality.VIDEO:
            return self._measure_video(size, options)
        measures = super().measure(modality, size, options)
        return {**measures, "padded": max(map(math.prod, measures["grids"]))} if self._pads else measures

    def _measure_video(self, size: MediaSize, options: Mapping[str, int]) -> Features:
        """A frame is not cut."""
        packing = options.get("force_packing", _choose_packing(size))
        if packing > _MAX_PACKING:
            message = f"video option force_packing must be an integer in [1, {_MAX_PACKING}], got {packing}"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "force_packing")
        whole = self.fit_whole((size.height, size.width), enlarges=True)
        places = _find_places(size)
        return {
            "num_tiles": size.num_frames,
            "resized": whole,
            "whole": whole,
            "cut": (0, 0),
            "grids": (self.find_grid(whole),) * size.num_frames,
            "packs": tuple(tuple(places[first : first + packing]) for first in range(0, size.num_frames, packing)),
        }

    def word(self, modality: Modality, measures: Features | None) -> Wording | None:
        """A video's own marker is no token, but those around its first and last pack are."""
        if modality is Modality.IMAGE:
            return None
        return Wording(before="", marker=self._markers[Modality.IMAGE], after="")

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        if modality is Modality.VIDEO:
            pack = self._tag_rows("im_start", "im_end")
            return make_expansion(*pack, *[(self._pack_break, False), *pack] * (len(measures["packs"]) - 1))
        rows, columns = measures["cut"]
        one_slice = self._tag_rows(*self._slice_tags)
        lines = [(self._line_break, False), *one_slice * columns] * rows
        outer = [([self._ids[name]], False) for name in self._outer_tags] if rows else []
        number = [(self.spell_number(0), False)] if measures["has_number"] else []
        return make_expansion(*number, *self._tag_rows("im_start", "im_end"), *outer[:1], *lines[1:], *outer[1:])

    def _tag_rows(self, start: str, end: str) -> list[tuple[list[int], bool]]:
        return [([self._ids[start]], False), ([self._ids["unk"]] * self._num_queries, True), ([self._ids[end]], False)]

    def share(self, measures: Sequence[Features]) -> Sequence[Features]:
        """2.5 pads the slices of all pictures of a prompt to the length of the longest, and attends to the padding."""
        if not self._pads or not measures:
            return super().share(measures)
        longest = max(each["padded"] for each in measures)
        return [{} if each["padded"] == longest else {"padded": longest} for each in measures]

    def num_units(self, measures: Features) -> int:
        return len(measures["grids"]) * measures.get("padded", 0) or super().num_units(measures)

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        import torch

        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.resampler import ResampledEncoder, ResampledSiglip, ResamplerConfig
        from seesay.encoders.towers.vit import VitConfig
        from seesay.encoders.towers.weights import load_tower

        config = self.checkpoint.model_config
        vision = config.vision_config
        num_layers = vision.num_hidden_layers - config.drop_vision_last_layer
        tower = VitConfig.of_clip(vision, has_class_token=False, feature_layers=(num_layers,), has_final_norm=True)
        sizes = ResamplerConfig(
            tower=tower,
            num_queries=self._num_queries,
            num_heads=config.text_config.hidden_size // _HEAD_SIZE,
            out_hidden_size=config.text_config.hidden_size,
            has_lines=self._has_lines,
        )
        with torch.device("meta"):
            model = ResampledSiglip(sizes)

        def used_name(name: str) -> str | None:
            parameter = self.weights.tower_name(name)
            is_dropped = parameter is not None and is_layer_above(parameter, "tower.blocks.", num_layers)
            return None if is_dropped else parameter

        weights = load_tower(model, self.checkpoint, used_name, device=device, dtype=dtype)
        return ResampledEncoder(model, PixelNormalizer(**self.pixels.statistics), weights)


def _choose_packing(size: MediaSize) -> int:
    """Return the frames in a pack of a video, as published: what is sampled in its last second, if that is not a whole
    one, does not count."""
    duration = _find_duration_s(size)
    if duration > 0 and size.num_frames * int(duration) / duration <= _MAX_PACKS:
        return 1
    return min(math.ceil(size.num_frames / _MAX_PACKS), _USUAL_PACKING)


def _find_places(size: MediaSize) -> Sequence[int]:
    """Return the place in time of each frame: the nearest of the steps of 0.1 s before the end of the video."""
    last = max(0, math.ceil(_find_duration_s(size) / _TIME_STEP_S) - 1)
    steps = np.clip(np.rint(np.asarray(size.timestamps_s) / _TIME_STEP_S), 0, last)
    # As published, times are made of the steps, and cut off: rounding makes some a step less.
    places: list[int] = (steps * _TIME_STEP_S / _TIME_STEP_S).astype(np.int64).tolist()
    return places


def _find_duration_s(size: MediaSize) -> float:
    return size.frame_interval_s * size.num_frames or size.timestamps_s[-1]
