"""Qwen2-VL: pictures and videos at about their own size, positions in time, height and width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from seesay.checkpoint.embedders import find_embedder
from seesay.values import Modality
from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily, PatchSettings
from seesay.vl.published import Published

if TYPE_CHECKING:
    from seesay.encoders.towers.packed_layout import PackedVisionConfig


class Qwen2VL(DynamicResolutionFamily):
    """Time steps of a video are one position apart, whatever their duration. jina-reranker-m0 has layers for scores
    besides, which `vl/reranking.py` reads. GME's own code resizes pictures twice, with Pillow: near their own size, and
    then to 256 to 1280 tokens."""

    weights = replace(DynamicResolutionFamily.weights, ignored=("score.0.", "score.2."))
    architectures = ("Qwen2VLForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="qwen2_vl_text",
            names=("Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2-VL-7B-Instruct", "Qwen/QVQ-72B-Preview"),
        ),
        Published(decoder="qwen2_vl_text", architecture="JinaVLForRanking", names=("jinaai/jina-reranker-m0",)),
        Published(
            decoder="qwen2_vl_text",
            architecture="GmeQwen2VL",
            names=("Alibaba-NLP/gme-Qwen2-VL-2B-Instruct", "Alibaba-NLP/gme-Qwen2-VL-7B-Instruct"),
        ),
    )

    def read_settings(self, modality: Modality, settings: Mapping[str, object]) -> PatchSettings:
        found = super().read_settings(modality, settings)
        if modality is not Modality.IMAGE or find_embedder(self.checkpoint) != "gme":
            return found
        token = found.factor**2
        return replace(
            found,
            pixels=replace(found.pixels, library="pillow"),
            min_pixels=256 * token,
            max_pixels=1280 * token,
            first_limits=(4 * token, 16384 * token),
        )

    def tower_config(self) -> PackedVisionConfig:
        vision = self.checkpoint.model_config.vision_config
        return self.make_tower_config(
            hidden_size=vision.embed_dim,
            intermediate_size=int(vision.embed_dim * vision.mlp_ratio),
            out_hidden_size=vision.hidden_size,
            uses_rms_norm=False,
        )
