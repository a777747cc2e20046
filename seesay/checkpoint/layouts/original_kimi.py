"""Kimi-VL as its authors publish it: a tower MoonViT and a DeepSeek-V3. Read as a LLaVA in Transformers' layout, whose
SigLIP has the sizes of the MoonViT, which was made of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import check_fields, read_count, read_part
from seesay.checkpoint.layouts.original_deepseek_vl2 import read_deepseek_v3

_NUM_TOKENS = 163840
_PLACEHOLDER = 163605
_SIZES = {
    "patch_size": 14,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
}
_SIDES = {"init_pos_emb_height": 64, "init_pos_emb_width": 64}
_MOST_POSITIONS = 1 << 10
"""In a side of the grid of learned positions."""


def read_kimi_vl(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of tower and decoder. Raises `CheckpointError` naming a field that is not supported."""
    vision = {**_SIDES, **read_part(config, "vision_config")}
    side = read_count(vision, "init_pos_emb_height", most=_MOST_POSITIONS)
    expected = {"model_type": "moonvit", "merge_kernel_size": [2, 2], "init_pos_emb_width": side}
    check_fields(vision, expected, where="vision_config.")
    sizes = {name: usual if vision.get(name) is None else vision[name] for name, usual in _SIZES.items()}
    return {
        "architectures": config.get("architectures"),
        "model_type": "llava",
        "text_config": read_deepseek_v3({"vocab_size": _NUM_TOKENS, **read_part(config, "text_config")}),
        "image_token_index": config.get("media_placeholder_token_id", _PLACEHOLDER),
        "tie_word_embeddings": False,
        "eos_token_id": config.get("eos_token_id"),
        "vision_config": {
            **sizes,
            "model_type": "siglip_vision_model",
            "image_size": side * read_count(sizes, "patch_size"),
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-5,
        },
    }
