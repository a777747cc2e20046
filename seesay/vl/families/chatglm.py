"""ChatGLM 2 and 3, and GLM-4 in its authors' layout: GLM under other names, packed tensors."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import WeightMap


class ChatGLM(TextFamily):
    """Configuration and model are code beside the weights; none of it is run."""

    architectures = ("ChatGLMModel",)
    published = (Published(decoder="glm", names=("THUDM/chatglm2-6b", "THUDM/chatglm3-6b", "THUDM/glm-4-9b-chat")),)
    weights = WeightMap(
        decoder={"transformer.": ""},
        decoder_patterns=(
            (r"^embedding\.word_embeddings\.", "embed_tokens."),
            (r"^encoder\.layers\.", "layers."),
            (r"^encoder\.final_layernorm\.", "norm."),
            (r"^output_layer\.", "lm_head."),
            (r"\.self_attention\.query_key_value\.", ".self_attn.qkv_proj."),
            (r"\.self_attention\.dense\.", ".self_attn.o_proj."),
            (r"\.mlp\.dense_h_to_4h\.", ".mlp.gate_up_proj."),
            (r"\.mlp\.dense_4h_to_h\.", ".mlp.down_proj."),
        ),
    )
