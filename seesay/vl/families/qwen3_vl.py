"""Qwen3-VL: pictures at about their own size, learned positions in the tower, parts of its inner layers' output added
behind the decoder's first layers, and the time of each step of a video before it (arXiv 2511.21631, section 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.media.images import smart_resize
from seesay.values import Expansion, MediaSize, Modality
from seesay.vl.dynamic_resolution import DynamicResolutionFamily, PatchSettings, find_target
from seesay.vl.family import Backbone, Features, make_expansion
from seesay.vl.published import Published

if TYPE_CHECKING:
    from seesay.encoders.packed_layout import PackedVisionConfig

_MERGER = r"^(merger|deep_mergers\.\d+)\."


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSettings(PatchSettings):
    """Sizes of videos: `min_pixels` and `max_pixels` are those of all frames together. `max_frame_pixels`, when set,
    bounds each of them, too."""

    max_frame_pixels: int | None = None

    @property
    def limits(self) -> list[int | None]:
        return [*super(ClipSettings, self).limits, self.max_frame_pixels]

    def fit(self, size: MediaSize, options: Mapping[str, int]) -> tuple[int, int]:
        """See `PatchSettings.fit`. Options `min_pixels` and `max_pixels` are those of one frame, `total_pixels` those
        of all."""
        num_frames = max(size.num_frames, self.temporal_patch_size)
        most = options.get("total_pixels", self.max_pixels)
        if self.max_frame_pixels is not None:
            share = min(self.max_frame_pixels, most // num_frames)
            most = max(share, int(self.min_pixels * 1.05)) * num_frames
        least = options["min_pixels"] * num_frames if "min_pixels" in options else self.min_pixels
        if "min_pixels" in options and "total_pixels" not in options:
            most = max(most, least)
        most = min(most, options.get("max_pixels", most) * num_frames)
        if "min_pixels" not in options:
            least = min(least, most)
        if least > most:
            message = (
                f"min_pixels={options['min_pixels']} of {num_frames} frames is above the {most} pixels that they may "
                "have together"
            )
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "min_pixels")
        height, width = find_target(size, options)
        if min(height, width) < self.factor:
            grow = max(self.factor / height, self.factor / width)
            height, width = int(height * grow), int(width * grow)
        return smart_resize(
            height,
            width,
            factor=self.factor,
            min_pixels=least,
            max_pixels=most,
            num_frames=num_frames,
            temporal_factor=self.temporal_patch_size,
        )


class Qwen3VL(DynamicResolutionFamily):
    """The measures of a video have the `times` of its time steps in seconds: the middle between their first and last
    frame."""

    architectures = ("Qwen3VLForConditionalGeneration",)
    published = (
        Published(
            decoder="qwen3_vl_text",
            names=("Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-4B-Thinking", "Qwen/Qwen3-VL-32B-Instruct"),
        ),
    )
    default_sizes = {  # noqa: RUF012
        Modality.IMAGE: DynamicResolutionFamily.default_sizes[Modality.IMAGE],
        Modality.VIDEO: {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
    }
    weights = replace(
        DynamicResolutionFamily.weights,
        tower_patterns=(
            (r"^deepstack_merger_list\.", "deep_mergers."),
            (_MERGER + r"norm\.", r"\1.ln_q."),
            (_MERGER + r"linear_fc1\.", r"\1.mlp.0."),
            (_MERGER + r"linear_fc2\.", r"\1.mlp.2."),
            (r"\.mlp\.linear_fc", ".mlp.fc"),
        ),
    )

    def read_settings(self, modality: Modality, settings: Mapping[str, Any]) -> PatchSettings:
        if modality is Modality.IMAGE:
            return super().read_settings(modality, settings)
        found = ClipSettings.read(
            {"patch_size": 16, **settings, "cap_pixels_per_frame": False},
            self.checkpoint.path,
            processor="Qwen3VLVideoProcessor",
            default_size=self.default_sizes[modality],
        )
        if not settings.get("cap_pixels_per_frame"):
            return found
        return replace(found, max_frame_pixels=settings.get("max_video_tokens", 768) * found.factor**2)

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        measures = super().measure(modality, size, options)
        if modality is Modality.IMAGE:
            return measures
        step = self.settings[modality].temporal_patch_size
        times, last = size.timestamps_s, size.num_frames - 1
        middles = ((times[i] + times[min(i + step - 1, last)]) / 2 for i in range(0, size.num_frames, step))
        return {**measures, "times": tuple(middles)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        """Return for a video the time of each step as text, then its rows between markers of their own; all of that
        between two markers."""
        if modality is Modality.IMAGE:
            return super().expand(modality, measures)
        steps, *grid = measures["grid"]
        rows = [self._pads[modality]] * (math.prod(grid) // self.merge_size**2)
        pieces = [([self._start], False)]
        for time in measures["times"]:
            begin = [*self.tokenizer.encode(f"<{time:.1f} seconds>"), self._start]
            pieces += [(begin, False), (rows, True), ([self._end], False)]
        assert len(measures["times"]) == steps, "each time step has a time"
        return make_expansion(*pieces, ([self._end], False))

    def backbone(self) -> Backbone:
        vision = self.checkpoint.model_config.vision_config
        return replace(super().backbone(), num_deep_layers=len(vision.deepstack_visual_indexes))

    def tower_config(self) -> PackedVisionConfig:
        vision = self.checkpoint.model_config.vision_config
        position_side = math.isqrt(vision.num_position_embeddings)
        if position_side**2 != vision.num_position_embeddings:
            raise CheckpointError(
                f"vision_config.num_position_embeddings={vision.num_position_embeddings} must be the square of a number"
            )
        return self.make_tower_config(
            hidden_size=vision.hidden_size,
            intermediate_size=vision.intermediate_size,
            out_hidden_size=vision.out_hidden_size,
            uses_rms_norm=False,
            patch_bias=True,
            position_side=position_side,
            deep_layers=tuple(sorted(vision.deepstack_visual_indexes)),
        )
