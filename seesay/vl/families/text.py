"""Text-only checkpoints: the same stream with no media in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.errors import ErrorCode, RequestError
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.vl.family import BARE_DECODER, Family, Features, WeightMap


class TextFamily(Family):
    """Decoders without a tower."""

    architectures = (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    )
    weights = WeightMap(decoder={**BARE_DECODER, "model.": "", "lm_head.": "lm_head."})

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {}

    def preprocess(self, media: DecodedMedia, options: Mapping[str, Any]) -> Features:  # noqa: ARG002
        message = f"this model takes text only; the request holds a {media.modality.value}"
        raise RequestError(ErrorCode.INVALID_MEDIA, message, "messages")

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, Any]) -> Features:  # noqa: ARG002
        raise AssertionError("a text model has no media to measure")

    def expand(self, modality: Modality, features: Features) -> Expansion:  # noqa: ARG002
        raise AssertionError("a text model has no media to expand")

    def num_units(self, features: Features) -> int:  # noqa: ARG002
        raise AssertionError("a text model has no media to encode")
