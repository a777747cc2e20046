"""MPT: ALiBi instead of rotary positions, layer norms without a bias, one tensor for queries, keys and values."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import WeightMap


class Mpt(TextFamily):
    """Published with code beside the weights, which is not run."""

    architectures = ("MptForCausalLM",)
    published = (
        Published(
            decoder="mpt", names=("mosaicml/mpt-7b-chat", "mosaicml/mpt-30b-chat"), architecture="MPTForCausalLM"
        ),
    )
    weights = WeightMap(
        decoder={"transformer.": "", "lm_head.": "lm_head."},
        decoder_patterns=(
            (r"^wte\.", "embed_tokens."),
            (r"^blocks\.", "layers."),
            (r"^norm_f\.", "norm."),
            (r"\.norm_1\.", ".input_layernorm."),
            (r"\.norm_2\.", ".post_attention_layernorm."),
            (r"\.attn\.Wqkv\.", ".self_attn.qkv_proj."),
            (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
            (r"\.ffn\.", ".mlp."),
        ),
    )
