"""Text-only checkpoints: the same stream with no media in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.vl.family import BARE_DECODER, Family, Features, WeightMap


class TextFamily(Family):
    """Decoders without a tower."""

    architectures: ClassVar[tuple[str, ...]] = (
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "InternLM3ForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
    )
    weights = WeightMap(decoder={**BARE_DECODER, "model.": "", "lm_head.": "lm_head."})

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {}

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:  # noqa: ARG002
        raise AssertionError("a text model has no media to preprocess")

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:  # noqa: ARG002
        raise AssertionError("a text model has no media to measure")

    def expand(self, modality: Modality, measures: Features) -> Expansion:  # noqa: ARG002
        raise AssertionError("a text model has no media to expand")

    def num_units(self, measures: Features) -> int:  # noqa: ARG002
        raise AssertionError("a text model has no media to encode")
