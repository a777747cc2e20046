"""LLaVA-OneVision: lines of large pictures are shrunk, and frames of videos to half their height and width."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Tiles, pad_to
from seesay.vl.bases.any_resolution import NEWLINE, AnyResolutionFamily
from seesay.vl.bases.arrangement import (
    Rows,
    blend,
    chain,
    chain_blends,
    end_blended_lines,
    end_lines,
    number_rows,
    shrink,
)
from seesay.vl.bases.pixels import PixelSettings, find_library, read_padding_color, read_processor, read_square
from seesay.vl.family import Features, make_expansion
from seesay.vl.published import Published

_SHRINKS_ABOVE = 1.1


class LlavaOnevision(AnyResolutionFamily):
    """Features of a clip: a tile of each frame, or frames; the arrangement of their rows; and the plan's measures.
    Several pictures of a prompt are not cut: each is padded to a square."""

    architectures = ("LlavaOnevisionForConditionalGeneration",)
    published = (
        Published(
            decoder="qwen2",
            names=("llava-hf/llava-onevision-qwen2-0.5b-ov-hf", "llava-hf/llava-onevision-qwen2-7b-ov-hf"),
        ),
        Published(
            architecture="LlavaQwenForCausalLM",
            decoder="qwen2",
            names=("lmms-lab/llava-onevision-qwen2-0.5b-ov", "lmms-lab/llava-onevision-qwen2-7b-ov"),
        ),
    )
    modalities = (Modality.IMAGE, Modality.VIDEO)
    default_sampling = {"num_frames": 32}
    strategies = ("full",)
    processor = "LlavaOnevisionImageProcessor"

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        ratio = re.fullmatch(r"anyres_max_([1-9]\d{0,2})", str(config.vision_aspect_ratio))
        if ratio is None:
            given = config.vision_aspect_ratio
            raise CheckpointError(f"{where}: vision_aspect_ratio must be anyres_max_N, got {given!r}")
        self._max_rows = int(ratio[1]) * math.prod(self.grid)
        self._color = read_padding_color(self.settings, where, processor=self.processor)
        settings = read_processor(checkpoint, "video_processor")
        self._video_pixels = PixelSettings.read(
            settings, where, processor="LlavaOnevisionVideoProcessor", library=find_library(checkpoint)
        )
        if self._video_pixels.statistics != self.pixels.statistics:
            raise CheckpointError(f"{where}: pictures and videos are normalized differently: not supported")
        size = settings.get("size", self.image_size)
        if read_square(size, where, "size") != self.tile:
            raise CheckpointError(f"{where}: the video processor's size {size} is not the tower's {self.tile}")
        self._video_token, video_text = self.find_placeholder(Modality.VIDEO)
        self._markers = {**self._markers, Modality.VIDEO: video_text}

    @property
    def preprocessing(self) -> Mapping[str, object]:
        own = {"video": self._video_pixels.as_json(), "max_rows": self._max_rows, "padding": self._color}
        return {**super().preprocessing, **own}

    def shared_options(self, num_pictures: int) -> Mapping[str, int]:
        return {"max_dynamic_patch": 1} if num_pictures > 1 else {}

    def arrange(self, whole: Rows, lines: Rows) -> Features:
        ratio = math.sqrt(lines.size / self._max_rows)
        if ratio <= _SHRINKS_ABOVE:
            return {"rows": chain(whole, end_lines(lines, NEWLINE))}
        height, width = lines.shape
        shrunk = shrink(lines, (int(height // ratio), int(width // ratio)))
        return chain_blends(blend(whole), end_blended_lines(shrunk, NEWLINE))

    def _arrange_clip(self, num_frames: int) -> Features:
        side = math.ceil(self.grid_side / 2)
        first, weights = shrink(number_rows(0, self.grid), (side, side))
        steps = np.arange(num_frames, dtype=np.int32)[:, None, None, None] * math.prod(self.grid)
        frames = first + steps, np.broadcast_to(weights, (num_frames, *weights.shape))
        return chain_blends(frames, blend(np.full(1, NEWLINE, dtype=np.int32)))

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return options if modality is Modality.VIDEO else super().lower_detail(modality, options)

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        if modality is Modality.VIDEO:
            return {"num_tiles": size.num_frames, "resized": self.tile}
        return super().measure(modality, size, options)

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        if modality is Modality.VIDEO:
            num_rows = measures["num_tiles"] * math.ceil(self.grid_side / 2) ** 2 + 1
            return make_expansion(([self._video_token] * num_rows, True))
        return super().expand(modality, measures)

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        if modality is Modality.IMAGE and measures["cut"] != (0, 0):
            return super().chain_frames(modality, size, measures)
        if modality is Modality.IMAGE:
            side = max(size.height, size.width)
            padding = pad_to((size.height, size.width), (side, side), self._color)
            return ((*padding, self.pixels.resize(self.tile), Tiles(self.tile)),)
        return ((self._video_pixels.resize(self.tile), Tiles(self.tile)),)

    def _arrange(self, measures: Features) -> Features:
        return super()._arrange(measures) if "cut" in measures else self._arrange_clip(measures["num_tiles"])
