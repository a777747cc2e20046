"""The names of a checkpoint's tensors: which are the decoder's, which the tower's, and what they are called there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from seesay.checkpoint import is_buffer

BARE_DECODER = {name: name for name in ("layers.", "embed_tokens.", "norm.")}
"""Tensor names of a decoder that was saved by itself, without its head: see `WeightMap.decoder`."""
NESTED_DECODER = {
    "language_model.": "",
    "language_model.model.": "",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "",
    "lm_head.": "lm_head.",
}
"""Tensor names of a decoder inside of a vision-language model, with its head inside (older) or beside it (newer)."""
INTERNLM2_DECODER = (
    (r"^tok_embeddings\.", "embed_tokens."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.attention\.wqkv\.", ".self_attn.qkv_proj."),
    (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
)
"""`WeightMap.decoder_patterns` of an InternLM2."""
GLM4_DECODER = (
    (r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm."),
    (r"\.post_self_attn_layernorm\.", ".post_attention_layernorm."),
    (r"\.post_mlp_layernorm\.", ".post_feedforward_layernorm."),
)
"""`WeightMap.decoder_patterns` of a GLM-4-0414: its `post_attention_layernorm` is the norm before the feed-forward."""
QWEN_DECODER = (
    (r"^wte\.", "embed_tokens."),
    (r"^h\.", "layers."),
    (r"^ln_f\.", "norm."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.c_attn\.", ".self_attn.qkv_proj."),
    (r"\.attn\.c_proj\.", ".self_attn.o_proj."),
    (r"\.mlp\.w1\.", ".mlp.up_proj."),
    (r"\.mlp\.w2\.", ".mlp.gate_proj."),
    (r"\.mlp\.c_proj\.", ".mlp.down_proj."),
)
"""`WeightMap.decoder_patterns` of the first Qwen."""
_STACKED_EXPERTS = (
    (re.compile(r"(\.experts\.(?:gate_up|down)_proj)_(bias|blocks|scales)$"), r"\1.\2"),
    (re.compile(r"(\.experts\.(?:gate_up|down)_proj)(_scale_inv)?$"), r"\1.weight\2"),
)
"""Names of experts that are parameters of one module, and not modules of their own, as those of modules."""
QWEN_MOE_DECODER = ((r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),)
"""`WeightMap.decoder_patterns` of a Qwen with experts."""
LLAMA4_DECODER = (
    (r"\.feed_forward\.router\.", ".mlp.gate."),
    (r"\.feed_forward\.shared_expert\.", ".mlp.shared_experts."),
    (r"\.feed_forward\.", ".mlp."),
)
"""`WeightMap.decoder_patterns` of a Llama 4."""
MIXTRAL_DECODER = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
    (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."),
    (r"(\.experts\.\d+)\.w3\.", r"\1.up_proj."),
)
"""`WeightMap.decoder_patterns` of a Mixtral: the halves of an expert's feed-forward are numbered."""
GRANITE_MOE_DECODER = (
    (r"\.shared_mlp\.", ".mlp.shared_experts."),
    (r"\.block_sparse_moe\.router\.layer\.", ".mlp.gate."),
    (r"\.block_sparse_moe\.", ".mlp.experts."),
    (r"\.input_linear\.", ".gate_up_proj."),
    (r"\.output_linear\.", ".down_proj."),
)
"""`WeightMap.decoder_patterns` of a Granite with experts."""
GPT_OSS_DECODER = ((r"\.mlp\.router\.", ".mlp.gate."),)
"""`WeightMap.decoder_patterns` of a gpt-oss."""
NEMOTRON_DECODER = (
    (r"^embeddings\.", "embed_tokens."),
    (r"^norm_f\.", "norm."),
    (r"^(layers\.\d+)\.norm\.", r"\1.input_layernorm."),
    (r"\.mixer\.([qkvo]_proj\.)", r".self_attn.\1"),
    (r"\.mixer\.((?:up_proj|down_proj|gate|experts|shared_experts)\.)", r".mlp.\1"),
    (r"\.mixer\.", ".mamba."),
)
"""`WeightMap.decoder_patterns` of a Nemotron-H: each layer has one norm and one mixer, of several kinds."""
NESTED_PREFIXES = ("", "model.")
"""Beginnings of a tower's tensor names in such a checkpoint: none (older), or the base model's attribute (newer)."""


Patterns = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMap:
    """Assign checkpoint tensors to the decoder and the tower, by prefix of their names; the longest matching prefix
    decides.

    `decoder` and `tower` map a prefix to what replaces it in the decoder's names (`layers.0.self_attn.q_proj.weight`,
    `embed_tokens.weight`, `norm.weight`, `lm_head.weight`) and in the tower's. Tensors whose prefix is in `ignored`, or
    in whose names one of `ignored_patterns` is found, are not used, and neither are buffers (`is_buffer`).
    decoder_patterns, tower_patterns: regular expressions and what replaces them in the decoder's and the tower's names,
    one after another (see `re.sub`).
    """

    decoder: Mapping[str, str]
    tower: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    ignored_patterns: tuple[str, ...] = ()
    decoder_patterns: Patterns = ()
    tower_patterns: Patterns = ()

    def decoder_name(self, name: str) -> str | None:
        """Return the decoder's name of checkpoint tensor `name`; None when it is not the decoder's."""
        found = self._rename(name, self.decoder, self.decoder_patterns)
        if found is not None and ".experts." in found:
            for pattern, replacement in _STACKED_EXPERTS:
                found = pattern.sub(replacement, found)
        return found

    def tower_name(self, name: str) -> str | None:
        """Return the tower's name of checkpoint tensor `name`; None when it is not the tower's."""
        return self._rename(name, self.tower, self.tower_patterns)

    def is_leftover(self, name: str) -> bool:
        """Return whether neither decoder nor tower use the tensor, and it is not expected either: another head of the
        model, or a buffer other than the rotary frequencies and position ids that many checkpoints contain."""
        if is_buffer(name):
            return not name.endswith((".inv_freq", ".position_ids"))
        return self._prefix(name) is None

    def _prefix(self, name: str) -> str | None:
        fitting = (p for p in (*self.decoder, *self.tower, *self.ignored) if name.startswith(p))
        return max(fitting, key=len, default=None)

    def _rename(self, name: str, owner: Mapping[str, str], patterns: Patterns) -> str | None:
        prefix = self._prefix(name)
        if prefix is None or prefix not in owner or is_buffer(name):
            return None
        if any(re.search(pattern, name) for pattern in self.ignored_patterns):
            return None
        found = owner[prefix] + name[len(prefix) :]
        for pattern, replacement in patterns:
            found = re.sub(pattern, replacement, found)
        return found


def is_layer_above(name: str, prefix: str, count: int) -> bool:
    """Return whether parameter `name` belongs to a layer (`prefix` + its number) beyond the first `count`."""
    number = name.removeprefix(prefix).partition(".")[0]
    return name.startswith(prefix) and number.isdigit() and int(number) >= count
