"""Qwen2-VL: pictures and videos at about their own size, positions in time, height and width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.values import Modality
from seesay.vl.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.family import BARE_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import Encoder


class Qwen2VL(DynamicResolutionFamily):
    """Time steps of a video are one position apart, whatever their duration."""

    architectures = ("Qwen2VLForConditionalGeneration",)
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

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> Encoder:
        import torch

        from seesay.encoders.layers import PixelNormalizer
        from seesay.encoders.qwen_vit import QwenEncoder, QwenVisionConfig, QwenVisionTower
        from seesay.encoders.weights import load_weights

        vision = self.checkpoint.hf_config().vision_config
        config = QwenVisionConfig(
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
        with torch.device("meta"):
            tower = QwenVisionTower(config)
        load_weights(tower, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype)
        return QwenEncoder(tower, PixelNormalizer(**self.settings[Modality.IMAGE].pixels.statistics))
