"""Qwen3-VL: pictures at about their own size, learned positions in the tower, and parts of its inner layers' output
added behind the decoder's first layers (arXiv 2511.21631, section 2)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.errors import CheckpointError
from seesay.values import Modality
from seesay.vl.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.family import Backbone
from seesay.vl.published import Published

if TYPE_CHECKING:
    from seesay.encoders.packed_layout import PackedVisionConfig

_MERGER = r"^(merger|deep_mergers\.\d+)\."


class Qwen3VL(DynamicResolutionFamily):
    """Videos are not supported: their prompts spell the time of each frame."""

    architectures = ("Qwen3VLForConditionalGeneration",)
    published = (
        Published(
            decoder="qwen3_vl_text",
            names=("Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-4B-Thinking", "Qwen/Qwen3-VL-32B-Instruct"),
        ),
    )
    modalities = (Modality.IMAGE,)
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
