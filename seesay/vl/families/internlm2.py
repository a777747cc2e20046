"""InternLM2 and 2.5: Llama under other names, with queries, keys and values of a group of heads together."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import INTERNLM2_DECODER, WeightMap


class InternLM2(TextFamily):
    """Configuration and model are code beside the weights; none of it is run."""

    architectures = ("InternLM2ForCausalLM",)
    published = (Published(decoder="llama", names=("internlm/internlm2-chat-7b", "internlm/internlm2_5-7b-chat")),)
    weights = WeightMap(decoder={"model.": "", "output.": "lm_head."}, decoder_patterns=INTERNLM2_DECODER)
