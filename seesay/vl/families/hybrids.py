"""Text models with states between layers of attention, or beside attention: Mamba, Mamba-2, Kimi's delta nets."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import MIXTRAL_DECODER, NEMOTRON_DECODER

_NAMES = (
    (r"^final_layernorm\.", "norm."),
    (r"\.pre_ff_layernorm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.router\.", ".mlp.gate."),
    (r"\.feed_forward\.", ".mlp."),
)


class Bamba(TextFamily):
    """Llama's attention, of which a part of each head is rotated, between layers of Mamba-2."""

    architectures: ClassVar[tuple[str, ...]] = ("BambaForCausalLM",)
    published: ClassVar[tuple[Published, ...]] = (Published(decoder="bamba", names=("ibm-ai-platform/Bamba-9B-v2",)),)
    weights = replace(TextFamily.weights, decoder_patterns=_NAMES)


class FalconH1(TextFamily):
    """Each layer has attention and Mamba-2 beside each other, and factors of nearly everything."""

    architectures: ClassVar[tuple[str, ...]] = ("FalconH1ForCausalLM",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="falcon_h1",
            names=(
                "tiiuae/Falcon-H1-0.5B-Instruct",
                "tiiuae/Falcon-H1-1.5B-Instruct",
                "tiiuae/Falcon-H1-7B-Instruct",
                "tiiuae/Falcon-H1-34B-Instruct",
            ),
        ),
    )
    weights = replace(
        TextFamily.weights, decoder_patterns=_NAMES, ignored=("mup_vector",), ignored_patterns=(r"\.mup_vector$",)
    )


class NemotronH(TextFamily):
    """Each layer is Mamba-2, attention without positions, a feed-forward, or experts; neither of these has gates."""

    architectures: ClassVar[tuple[str, ...]] = ("NemotronHForCausalLM",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="nemotron_h",
            names=(
                "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
                "nvidia/NVIDIA-Nemotron-Nano-12B-v2",
                "nvidia/Nemotron-H-8B-Base-8K",
                "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            ),
        ),
    )
    weights = replace(
        TextFamily.weights,
        decoder={**TextFamily.weights.decoder, "backbone.": ""},
        decoder_patterns=NEMOTRON_DECODER,
        ignored=("mtp.",),
    )


class KimiLinear(TextFamily):
    """Delta nets, and every few layers attention to latent rows without positions (arXiv 2510.26692)."""

    architectures: ClassVar[tuple[str, ...]] = ("KimiLinearForCausalLM",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="kimi_linear", names=("moonshotai/Kimi-Linear-48B-A3B-Instruct",)),
    )
    weights = replace(TextFamily.weights, decoder_patterns=((r"\.forget_gate\.", "."), *MIXTRAL_DECODER))


class Jamba(TextFamily):
    """The first Mamba between layers of attention without positions; some feed-forwards have experts."""

    architectures: ClassVar[tuple[str, ...]] = ("JambaForCausalLM",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="jamba", names=("ai21labs/AI21-Jamba-Mini-1.7", "ai21labs/AI21-Jamba-Reasoning-3B")),
    )
    weights = replace(TextFamily.weights, decoder_patterns=_NAMES)
