"""Baichuan and Baichuan 2: a Llama with one tensor for queries, keys and values. The models of 13B have ALiBi. The head
of the second one is normalized."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import BARE_DECODER, WeightMap


class Baichuan(TextFamily):
    """Configuration and model are code beside the weights; none of it is run. The first one of 13B has the name of the
    second one's architecture."""

    architectures = ("BaiChuanForCausalLM", "BaichuanForCausalLM")
    published = (
        Published(decoder="llama", names=("baichuan-inc/Baichuan-7B",), architecture="BaiChuanForCausalLM"),
        Published(
            decoder="llama",
            names=(
                "baichuan-inc/Baichuan2-7B-Chat",
                "baichuan-inc/Baichuan2-13B-Chat",
                "baichuan-inc/Baichuan-13B-Chat",
            ),
            architecture="BaichuanForCausalLM",
        ),
    )
    weights = WeightMap(
        decoder={**BARE_DECODER, "model.": "", "lm_head.": "lm_head."},
        decoder_patterns=((r"\.self_attn\.W_pack\.", ".self_attn.qkv_proj."),),
    )
