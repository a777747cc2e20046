"""InternLM2 and 2.5: Llama under other names, with queries, keys and values of a group of heads together."""

from __future__ import annotations

from dataclasses import replace

from seesay.vl.families.text import TextFamily
from seesay.vl.family import Backbone, WeightMap
from seesay.vl.published import Published


class InternLM2(TextFamily):
    """Configuration and model are code beside the weights; none of it is run."""

    architectures = ("InternLM2ForCausalLM",)
    published = (Published(decoder="llama", names=("internlm/internlm2-chat-7b", "internlm/internlm2_5-7b-chat")),)
    weights = WeightMap(
        decoder={"model.": "", "output.": "lm_head."},
        decoder_patterns=(
            (r"^tok_embeddings\.", "embed_tokens."),
            (r"\.attention_norm\.", ".input_layernorm."),
            (r"\.attention\.wqkv\.", ".self_attn.wqkv."),
            (r"\.attention\.wo\.", ".self_attn.o_proj."),
            (r"\.ffn_norm\.", ".post_attention_layernorm."),
            (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
            (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
            (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
        ),
    )

    def backbone(self) -> Backbone:
        return replace(super().backbone(), has_grouped_qkv=True)
