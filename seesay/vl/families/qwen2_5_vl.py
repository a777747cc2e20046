"""Qwen2.5-VL: a tower with window attention; the positions of a video follow its time in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.values import Modality
from seesay.vl.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.family import BARE_DECODER, Features, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import Encoder


class Qwen2_5VL(DynamicResolutionFamily):  # noqa: N801
    """Time steps of a video are `tokens_per_second` positions per second apart (config.json's vision_config)."""

    architectures = ("Qwen2_5_VLForConditionalGeneration",)
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

    def time_interval(self, features: Features) -> float:
        tokens_per_second: float = self.checkpoint.hf_config().vision_config.tokens_per_second
        return tokens_per_second * float(features.get("seconds_per_grid", 0.0))

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> Encoder:
        import torch

        from seesay.encoders.layers import PixelNormalizer
        from seesay.encoders.qwen_vit import QwenEncoder, QwenVisionConfig, QwenVisionTower
        from seesay.encoders.weights import load_weights

        vision = self.checkpoint.hf_config().vision_config
        config = QwenVisionConfig(
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
        with torch.device("meta"):
            tower = QwenVisionTower(config)
        load_weights(tower, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype)
        return QwenEncoder(tower, PixelNormalizer(**self.settings[Modality.IMAGE].pixels.statistics))
