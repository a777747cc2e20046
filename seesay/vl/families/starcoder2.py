"""StarCoder2: layer norms with biases, a feed-forward without a gate, a sliding window."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import BARE_DECODER, WeightMap


class StarCoder2(TextFamily):
    """All linear layers have biases."""

    architectures = ("Starcoder2ForCausalLM",)
    published = (Published(decoder="starcoder2", names=("bigcode/starcoder2-3b", "bigcode/starcoder2-15b")),)
    weights = WeightMap(
        decoder={**BARE_DECODER, "model.": "", "lm_head.": "lm_head."},
        decoder_patterns=((r"\.mlp\.c_fc\.", ".mlp.up_proj."), (r"\.mlp\.c_proj\.", ".mlp.down_proj.")),
    )
