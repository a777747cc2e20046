"""Qwen2.5-VL: a tower with window attention; the positions of a video follow its time in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.vl.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.family import Features

if TYPE_CHECKING:
    from seesay.encoders.qwen_vit import QwenVisionConfig


class Qwen2_5VL(DynamicResolutionFamily):  # noqa: N801
    """Time steps of a video are `tokens_per_second` positions per second apart (config.json's vision_config)."""

    architectures = ("Qwen2_5_VLForConditionalGeneration",)

    def time_interval(self, features: Features) -> float:
        tokens_per_second: float = self.checkpoint.model_config.vision_config.tokens_per_second
        return tokens_per_second * float(features.get("seconds_per_grid", 0.0))

    def tower_config(self) -> QwenVisionConfig:
        from seesay.encoders.qwen_vit import QwenVisionConfig

        vision = self.checkpoint.model_config.vision_config
        return QwenVisionConfig(
            depth=vision.depth,
            hidden_size=vision.hidden_size,
            num_heads=vision.num_heads,
            intermediate_size=vision.intermediate_size,
            out_hidden_size=vision.out_hidden_size,
            patch_dim=vision.in_channels * vision.temporal_patch_size * vision.patch_size**2,
            merge_size=vision.spatial_merge_size,
            activation=vision.hidden_act,
            rope_theta=(getattr(vision, "rope_parameters", None) or {}).get("rope_theta", 10000.0),
            uses_rms_norm=True,
            window_size=vision.window_size // vision.patch_size // vision.spatial_merge_size,
            full_attention_layers=frozenset(vision.fullatt_block_indexes),
        )
