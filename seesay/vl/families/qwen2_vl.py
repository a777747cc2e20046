"""Qwen2-VL: pictures and videos at about their own size, positions in time, height and width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.vl.dynamic_resolution import DynamicResolutionFamily

if TYPE_CHECKING:
    from seesay.encoders.qwen_vit import QwenVisionConfig


class Qwen2VL(DynamicResolutionFamily):
    """Time steps of a video are one position apart, whatever their duration."""

    architectures = ("Qwen2VLForConditionalGeneration",)

    def tower_config(self) -> QwenVisionConfig:
        from seesay.encoders.qwen_vit import QwenVisionConfig

        vision = self.checkpoint.model_config.vision_config
        return QwenVisionConfig(
            depth=vision.depth,
            hidden_size=vision.embed_dim,
            num_heads=vision.num_heads,
            intermediate_size=int(vision.embed_dim * vision.mlp_ratio),
            out_hidden_size=vision.hidden_size,
            patch_dim=vision.in_channels * vision.temporal_patch_size * vision.patch_size**2,
            merge_size=vision.spatial_merge_size,
            activation=vision.hidden_act,
            rope_theta=(getattr(vision, "rope_parameters", None) or {}).get("rope_theta", 10000.0),
            uses_rms_norm=False,
        )
