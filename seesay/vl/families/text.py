"""Text-only checkpoints: the same stream with no media in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from seesay.frame_chain import Chain
from seesay.values import Expansion, MediaSize, Modality
from seesay.vl.family import Family, Features
from seesay.vl.published import Published
from seesay.vl.weight_map import BARE_DECODER, WeightMap


class TextFamily(Family):
    """Decoders without a tower."""

    architectures: ClassVar[tuple[str, ...]] = (
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "InternLM3ForCausalLM",
        "InternLMForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
    )
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="gemma2", names=("google/gemma-2-9b-it",), architecture="Gemma2ForCausalLM"),
        Published(decoder="gemma3_text", names=("google/gemma-3-1b-it",), architecture="Gemma3ForCausalLM"),
        Published(decoder="gemma", names=("google/gemma-7b-it",), architecture="GemmaForCausalLM"),
        Published(decoder="llama", names=("internlm/internlm3-8b-instruct",), architecture="InternLM3ForCausalLM"),
        Published(
            decoder="llama",
            names=("internlm/internlm-chat-7b", "internlm/internlm-chat-20b"),
            architecture="InternLMForCausalLM",
        ),
        Published(
            decoder="llama",
            names=("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-3B-Instruct", "01-ai/Yi-1.5-9B-Chat"),
            architecture="LlamaForCausalLM",
        ),
        Published(decoder="mistral", names=("mistralai/Mistral-7B-Instruct-v0.3",), architecture="MistralForCausalLM"),
        Published(
            decoder="phi3",
            names=(
                "microsoft/Phi-3-mini-4k-instruct",
                "microsoft/Phi-3.5-mini-instruct",
                "microsoft/Phi-4-mini-instruct",
            ),
            architecture="Phi3ForCausalLM",
        ),
        Published(decoder="qwen2", names=("Qwen/Qwen2.5-7B-Instruct",), architecture="Qwen2ForCausalLM"),
        Published(decoder="qwen3", names=("Qwen/Qwen3-8B",), architecture="Qwen3ForCausalLM"),
        Published(decoder="smollm3", names=("HuggingFaceTB/SmolLM3-3B",), architecture="SmolLM3ForCausalLM"),
    )
    weights = WeightMap(decoder={**BARE_DECODER, "model.": "", "lm_head.": "lm_head."})

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {}

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:  # noqa: ARG002
        raise AssertionError("a text model has no media to preprocess")

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:  # noqa: ARG002
        raise AssertionError("a text model has no media to measure")

    def expand(self, modality: Modality, measures: Features) -> Expansion:  # noqa: ARG002
        raise AssertionError("a text model has no media to expand")

    def num_units(self, measures: Features) -> int:  # noqa: ARG002
        raise AssertionError("a text model has no media to encode")
