"""Text-only checkpoints with the tensor names of Llama."""

from __future__ import annotations

from typing import ClassVar

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily


class LlamaLike(TextFamily):
    """Decoders whose tensors are named as Llama's."""

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
