"""Qwen3-VL and Qwen3.5: pictures at about their own size, learned positions in the tower, and the time of each step of
a video before it (arXiv 2511.21631, section 2). In a Qwen3-VL, parts of the output of the tower's inner layers are
added behind the decoder's first layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.embedders import find_embedder
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Modality
from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily, PatchSettings
from seesay.vl.bases.timed_videos import ClipSettings, Piece, TimedVideoFamily
from seesay.vl.family import Backbone
from seesay.vl.published import Published
from seesay.vl.weight_map import QWEN_MOE_DECODER

if TYPE_CHECKING:
    from seesay.encoders.towers.packed_layout import PackedVisionConfig

_MERGER = r"^(merger|deep_mergers\.\d+)\."


class Qwen3VL(TimedVideoFamily):
    """The time of a step of a video is the middle between those of its first and last frame. The own code of
    Qwen3-VL-Embedding resizes pictures with Pillow, within narrower limits, and takes a frame a second of a video."""

    architectures = (
        "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    )  # fmt: skip
    published = (
        Published(
            architecture="Qwen3VLForConditionalGeneration",
            decoder="qwen3_vl_text",
            names=(
                "Qwen/Qwen3-VL-2B-Instruct",
                "Qwen/Qwen3-VL-4B-Thinking",
                "Qwen/Qwen3-VL-32B-Instruct",
                "Qwen/Qwen3-VL-Embedding-2B",
            ),
        ),
        Published(
            architecture="Qwen3VLMoeForConditionalGeneration",
            decoder="qwen3_vl_moe_text",
            names=("Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3-VL-235B-A22B-Thinking"),
        ),
        Published(
            architecture="Qwen3_5ForConditionalGeneration",
            decoder="qwen3_5_text",
            names=("Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-27B"),
        ),
        Published(
            architecture="Qwen3_5MoeForConditionalGeneration",
            decoder="qwen3_5_moe_text",
            names=("Qwen/Qwen3.5-35B-A3B",),
        ),
    )
    default_sizes = {
        Modality.IMAGE: DynamicResolutionFamily.default_sizes[Modality.IMAGE],
        Modality.VIDEO: {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
    }
    weights = replace(
        DynamicResolutionFamily.weights,
        decoder_patterns=QWEN_MOE_DECODER,
        ignored=(*DynamicResolutionFamily.weights.ignored, "mtp."),
        tower_patterns=(
            (r"^deepstack_merger_list\.", "deep_mergers."),
            (_MERGER + r"norm\.", r"\1.ln_q."),
            (_MERGER + r"linear_fc1\.", r"\1.mlp.0."),
            (_MERGER + r"linear_fc2\.", r"\1.mlp.2."),
            (r"\.mlp\.linear_fc", ".mlp.fc"),
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        if find_embedder(checkpoint) == "qwen3_vl":
            self.default_sampling = {"fps": 1.0, "max_frames": 64}

    def read_settings(self, modality: Modality, settings: Mapping[str, Any]) -> PatchSettings:
        if modality is Modality.IMAGE:
            picture = super().read_settings(modality, settings)
            if find_embedder(self.checkpoint) != "qwen3_vl":
                return picture
            token = picture.factor**2
            pixels = replace(picture.pixels, library="pillow")
            return replace(picture, pixels=pixels, min_pixels=4 * token, max_pixels=1800 * token)
        found = ClipSettings.read(
            {"patch_size": 16, **settings, "cap_pixels_per_frame": False},
            self.checkpoint.path,
            processor="Qwen3VLVideoProcessor",
            default_size=self.default_sizes[modality],
        )
        if not settings.get("cap_pixels_per_frame"):
            return found
        return replace(found, max_frame_pixels=settings.get("max_video_tokens", 768) * found.factor**2)

    def find_times(self, times_s: Sequence[float], num_steps: int) -> tuple[float, ...]:
        step, last = self.settings[Modality.VIDEO].temporal_patch_size, len(times_s) - 1
        spans = ((i, min(i + step - 1, last)) for i in range(0, num_steps * step, step))
        return tuple((times_s[i] + times_s[j]) / 2 for i, j in spans)

    def write_step(self, time_s: float, rows: Piece) -> tuple[Piece, ...]:
        start, _, end = self.item_tokens[Modality.VIDEO]
        begin = [*self.tokenizer.encode(f"<{time_s:.1f} seconds>"), start]
        return (begin, False), rows, ([end], False)

    def backbone(self) -> Backbone:
        return replace(super().backbone(), num_deep_layers=len(self._deep_layers))

    @property
    def _deep_layers(self) -> tuple[int, ...]:
        """The layers of the tower whose output is added behind layers of the decoder; a Qwen3.5 has none."""
        found = getattr(self.checkpoint.model_config.vision_config, "deepstack_visual_indexes", None)
        return tuple(sorted(found or ()))

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
            deep_layers=self._deep_layers,
        )
