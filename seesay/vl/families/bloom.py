"""BLOOM: ALiBi instead of rotary positions, and a norm of the embeddings."""

from __future__ import annotations

from seesay.vl.families.falcon import HEADS_TOGETHER
from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import WeightMap


class Bloom(TextFamily):
    """Published tensors have no prefix."""

    architectures = ("BloomForCausalLM",)
    published = (Published(decoder="bloom", names=("bigscience/bloomz-7b1", "bigscience/bloom-560m")),)
    weights = WeightMap(
        decoder={
            **{name: name for name in ("h.", "word_embeddings.", "word_embeddings_layernorm.", "ln_f.")},
            "transformer.": "",
            "lm_head.": "lm_head.",
        },
        decoder_patterns=((r"^word_embeddings_layernorm\.", "embed_norm."), *HEADS_TOGETHER),
    )
