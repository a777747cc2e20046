"""Qwen2.5-VL: a tower with window attention; the positions of a video follow its time in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.family import Features
from seesay.vl.published import Published

if TYPE_CHECKING:
    from seesay.encoders.towers.packed_layout import PackedVisionConfig


class Qwen2_5VL(DynamicResolutionFamily):  # noqa: N801
    """Time steps of a video are `tokens_per_second` positions per second apart (config.json's vision_config)."""

    architectures = ("Qwen2_5_VLForConditionalGeneration",)
    published = (
        Published(
            decoder="qwen2_5_vl_text",
            names=("Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-72B-Instruct"),
        ),
    )

    coordinates = "pixel"

    def time_interval(self, features: Features) -> float:
        tokens_per_second: float = self.checkpoint.model_config.vision_config.tokens_per_second
        return tokens_per_second * float(features.get("seconds_per_grid", 0.0))

    def tower_config(self) -> PackedVisionConfig:
        vision = self.checkpoint.model_config.vision_config
        return self.make_tower_config(
            hidden_size=vision.hidden_size,
            intermediate_size=vision.intermediate_size,
            out_hidden_size=vision.out_hidden_size,
            uses_rms_norm=True,
            window_size=vision.window_size // vision.patch_size // vision.spatial_merge_size,
            full_attention_layers=frozenset(vision.fullatt_block_indexes),
        )
