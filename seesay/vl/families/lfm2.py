"""LFM2: short convolutions between layers of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily


class Lfm2(TextFamily):
    """Its tensors have other names than Llama's."""

    architectures: ClassVar[tuple[str, ...]] = ("Lfm2ForCausalLM",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="lfm2", names=("LiquidAI/LFM2-1.2B", "LiquidAI/LFM2-2.6B")),
    )
    weights = replace(
        TextFamily.weights,
        decoder_patterns=(
            (r"^embedding_norm\.", "norm."),
            (r"\.operator_norm\.", ".input_layernorm."),
            (r"\.ffn_norm\.", ".post_attention_layernorm."),
            (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
            (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
            (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
            (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
            (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
        ),
    )
