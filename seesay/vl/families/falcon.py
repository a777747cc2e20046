"""Falcon: attention and feed-forward beside each other, from one layer norm or two, or after each other; one tensor for
queries, keys and values, with those of a group of heads together; rotary positions or ALiBi."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import WeightMap

HEADS_TOGETHER = (
    (r"^word_embeddings\.", "embed_tokens."),
    (r"^h\.", "layers."),
    (r"^ln_f\.", "norm."),
    (r"\.self_attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.self_attention\.dense\.", ".self_attn.o_proj."),
    (r"\.mlp\.dense_h_to_4h\.", ".mlp.up_proj."),
    (r"\.mlp\.dense_4h_to_h\.", ".mlp.down_proj."),
)
"""`WeightMap.decoder_patterns` of BLOOM, and those of Falcon beside names of norms."""


class Falcon(TextFamily):
    """Falcon-RW has ALiBi."""

    architectures = ("FalconForCausalLM",)
    published = (
        Published(
            decoder="falcon",
            names=(
                "tiiuae/falcon-7b-instruct",
                "tiiuae/falcon-40b-instruct",
                "tiiuae/falcon-11B",
                "tiiuae/falcon-rw-1b",
            ),
        ),
    )
    weights = WeightMap(
        decoder={
            **{name: name for name in ("h.", "word_embeddings.", "ln_f.")},
            "transformer.": "",
            "lm_head.": "lm_head.",
        },
        decoder_patterns=(
            (r"\.ln_attn\.", ".input_layernorm."),
            (r"\.ln_mlp\.", ".pre_feedforward_layernorm."),
            *HEADS_TOGETHER,
        ),
    )
