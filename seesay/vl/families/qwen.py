"""The first Qwen: a Qwen2 with as many keys as queries, under other names."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import QWEN_DECODER, WeightMap


class Qwen(TextFamily):
    """Configuration, tokenizer and model are code beside the weights; none of it is run."""

    architectures = ("QWenLMHeadModel",)
    published = (
        Published(
            decoder="qwen2",
            names=("Qwen/Qwen-1_8B-Chat", "Qwen/Qwen-7B-Chat", "Qwen/Qwen-14B-Chat", "Qwen/Qwen-72B-Chat"),
        ),
    )
    weights = WeightMap(decoder={"transformer.": "", "lm_head.": "lm_head."}, decoder_patterns=QWEN_DECODER)
