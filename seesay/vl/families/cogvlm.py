"""CogVLM and CogVLM2 (arXiv 2311.03079, 2408.16500): a Llama in which the rows of pictures have weights of their own in
all linear layers of attention and feed-forward (visual experts), behind an EVA-CLIP."""

from __future__ import annotations

from dataclasses import replace

from seesay.llm.models.spec import MediaRowsSpec
from seesay.values import Expansion, Modality
from seesay.vl.bases.eva_clip import EVA_CLIP_TOWER, EvaClipFamily, name_eva_clip
from seesay.vl.family import Backbone, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import BARE_DECODER, WeightMap

_MARKER = "<image>"
"""Stands for a picture in a prompt. No token spells it: the text behind it is tokenized by itself, as published."""


class CogVlm(EvaClipFamily):
    architectures = ("CogVLMForCausalLM",)
    published = (
        Published(
            decoder="llama",
            names=("THUDM/cogvlm-chat-hf", "THUDM/cogvlm2-llama3-chat-19B", "THUDM/cogvlm2-llama3-chinese-chat-19B"),
        ),
    )
    weights = WeightMap(
        decoder={**{f"model.{name}": name for name in BARE_DECODER}, "lm_head.": "lm_head."},
        tower=name_eva_clip("model.vision."),
        tower_patterns=EVA_CLIP_TOWER,
        decoder_patterns=(
            (r"\.self_attn\.language_expert_query_key_value\.", ".self_attn.qkv_proj."),
            (r"\.self_attn\.language_expert_dense\.", ".self_attn.o_proj."),
            (r"\.self_attn\.vision_expert_query_key_value\.", ".media.self_attn.qkv_proj."),
            (r"\.self_attn\.vision_expert_dense\.", ".media.self_attn.o_proj."),
            (r"\.mlp\.language_mlp\.", ".mlp."),
            (r"\.mlp\.vision_mlp\.", ".media.mlp."),
        ),
    )

    def find_placeholder(self, modality: Modality) -> tuple[int, str]:
        return self.checkpoint.model_config.image_token_index, _MARKER

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        """All tokens take rows, the first and the last one learned ones."""
        return make_expansion(([self.image_token] * (self.num_rows + 2), True))

    def backbone(self) -> Backbone:
        """In the published code a row is a picture's where the token behind it takes a row, too: the last learned row
        is computed as text."""
        has_bias = self.checkpoint.model_config.has_expert_bias
        return replace(super().backbone(), media_rows=MediaRowsSpec(tokens="all_but_last", qkv_bias=has_bias))
