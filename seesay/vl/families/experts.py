"""Text-only checkpoints with experts, whose other tensors are named as Llama's."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import GPT_OSS_DECODER, GRANITE_MOE_DECODER, LLAMA4_DECODER, MIXTRAL_DECODER, QWEN_MOE_DECODER


class QwenMoe(TextFamily):
    """Experts are named as in the model, one by one."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "DeepseekForCausalLM")
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="qwen2_moe",
            names=("Qwen/Qwen1.5-MoE-A2.7B-Chat", "Qwen/Qwen2-57B-A14B-Instruct"),
            architecture="Qwen2MoeForCausalLM",
        ),
        Published(decoder="qwen3_moe", names=("Qwen/Qwen3-30B-A3B",), architecture="Qwen3MoeForCausalLM"),
        Published(
            decoder="qwen2_moe", names=("deepseek-ai/deepseek-moe-16b-chat",), architecture="DeepseekForCausalLM"
        ),
    )
    weights = replace(TextFamily.weights, decoder_patterns=QWEN_MOE_DECODER)


class QwenDeltaNet(TextFamily):
    """Gated delta nets beside attention, with experts or without."""

    architectures: ClassVar[tuple[str, ...]] = (
        "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM",
    )  # fmt: skip
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="qwen3_next",
            names=("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Thinking"),
            architecture="Qwen3NextForCausalLM",
        ),
    )
    weights = replace(TextFamily.weights, decoder_patterns=QWEN_MOE_DECODER, ignored=("mtp.",))


class NamedAsQwenMoe(TextFamily):
    """Mixtures whose shared feed-forward, which all tokens go through, is named as in the model."""

    architectures: ClassVar[tuple[str, ...]] = ("Ernie4_5_MoeForCausalLM", "Glm4MoeForCausalLM", "OlmoeForCausalLM")
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="ernie4_5_moe", names=("baidu/ERNIE-4.5-21B-A3B-PT",), architecture="Ernie4_5_MoeForCausalLM"
        ),
        Published(
            decoder="glm4_moe", names=("zai-org/GLM-4.5-Air", "zai-org/GLM-4.6"), architecture="Glm4MoeForCausalLM"
        ),
        Published(decoder="olmoe", names=("allenai/OLMoE-1B-7B-0924-Instruct",), architecture="OlmoeForCausalLM"),
    )
    weights = replace(
        TextFamily.weights, decoder_patterns=((r"\.mlp\.(gate\.)?moe_statics\.e_score", ".mlp.gate.e_score"),)
    )


class DeepSeek(TextFamily):
    """Attention to latent rows; experts, and what all tokens go through, are named as in the model."""

    architectures: ClassVar[tuple[str, ...]] = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="deepseek_v2",
            names=("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-ai/DeepSeek-V2-Chat"),
            architecture="DeepseekV2ForCausalLM",
        ),
        Published(
            decoder="deepseek_v3",
            names=("moonshotai/Moonlight-16B-A3B-Instruct",),
            architecture="DeepseekV3ForCausalLM",
        ),
    )


class GptOss(TextFamily):
    """Experts are stacked, in MXFP4 as published."""

    architectures: ClassVar[tuple[str, ...]] = ("GptOssForCausalLM",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="gpt_oss", names=("openai/gpt-oss-20b", "openai/gpt-oss-120b")),
    )
    weights = replace(TextFamily.weights, decoder_patterns=GPT_OSS_DECODER)


class Llama4(TextFamily):
    """The decoder of a Llama 4 by itself."""

    architectures: ClassVar[tuple[str, ...]] = ("Llama4ForCausalLM",)
    weights = replace(TextFamily.weights, decoder_patterns=LLAMA4_DECODER)


class Mixtral(TextFamily):
    """The halves of an expert's feed-forward are numbered."""

    architectures: ClassVar[tuple[str, ...]] = ("MixtralForCausalLM", "PhimoeForCausalLM")
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="mixtral", names=("mistralai/Mixtral-8x7B-Instruct-v0.1",), architecture="MixtralForCausalLM"
        ),
        Published(decoder="phimoe", names=("microsoft/Phi-3.5-MoE-instruct",), architecture="PhiMoEForCausalLM"),
    )
    weights = replace(TextFamily.weights, decoder_patterns=MIXTRAL_DECODER)


class GraniteMoe(TextFamily):
    """Experts are stacked, with their gate and up as one."""

    architectures: ClassVar[tuple[str, ...]] = ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="granitemoe",
            names=("ibm-granite/granite-3.1-3b-a800m-instruct", "ibm-granite/granite-3.1-1b-a400m-instruct"),
            architecture="GraniteMoeForCausalLM",
        ),
        Published(
            decoder="granitemoeshared",
            names=("ibm-research/moe-7b-1b-active-shared-experts",),
            architecture="GraniteMoeSharedForCausalLM",
        ),
    )
    weights = replace(TextFamily.weights, decoder_patterns=GRANITE_MOE_DECODER)
