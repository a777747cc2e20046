"""Qwen2-VL: pictures and videos at about their own size, positions in time, height and width."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.published import Published

if TYPE_CHECKING:
    from seesay.encoders.towers.packed_layout import PackedVisionConfig


class Qwen2VL(DynamicResolutionFamily):
    """Time steps of a video are one position apart, whatever their duration. jina-reranker-m0 has layers for scores
    besides, which `vl/reranking.py` reads."""

    weights = replace(DynamicResolutionFamily.weights, ignored=("score.0.", "score.2."))
    architectures = ("Qwen2VLForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="qwen2_vl_text",
            names=("Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2-VL-7B-Instruct", "Qwen/QVQ-72B-Preview"),
        ),
        Published(decoder="qwen2_vl_text", architecture="JinaVLForRanking", names=("jinaai/jina-reranker-m0",)),
    )

    def tower_config(self) -> PackedVisionConfig:
        vision = self.checkpoint.model_config.vision_config
        return self.make_tower_config(
            hidden_size=vision.embed_dim,
            intermediate_size=int(vision.embed_dim * vision.mlp_ratio),
            out_hidden_size=vision.hidden_size,
            uses_rms_norm=False,
        )
