"""Ovis 2 as its authors publish it, `Ovis`: a decoder, and a visual tokenizer with an AIMv2 inside. Read as the same
model in Transformers' layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.errors import CheckpointError

_TOKENIZER = "aimv2_visual_tokenizer"
_EXPECTED: Mapping[str, tuple[object, ...]] = {
    "backbone_kwargs": ({},),
    "depths": (None,),
    "drop_cls_token": (False,),
    "model_type": (_TOKENIZER,),
}
_SAME = (
    "hidden_size",
    "image_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "patch_size",
    "qkv_bias",
    "rms_norm_eps",
)
"""Fields of an AIMv2 that are called as in Transformers."""


def read_ovis(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of Ovis 2 in Transformers. There are no tokens for pictures and their indicators: with
    `has_media_tokens` false, no text spells them. Raises `CheckpointError` naming a field that is not supported, as in
    Ovis 1 with its other towers."""
    llm, tokenizer = _read_part(config, "llm_config"), _read_part(config, "visual_tokenizer_config")
    for name, allowed in _EXPECTED.items():
        if tokenizer.get(name, allowed[0]) not in allowed:
            got = str(tokenizer[name])[:60]
            raise CheckpointError(f"visual_tokenizer_config.{name} must be {allowed[0]}, got {got!r}")
    backbone = tokenizer.get("backbone_config")
    if not isinstance(backbone, Mapping) or backbone.get("model_type") != "aimv2":
        raise CheckpointError(f"visual_tokenizer_config.backbone_config must be an aimv2, got {str(backbone)[:60]!r}")
    return {
        "architectures": ["Ovis2ForConditionalGeneration"],
        **{name: llm[name] for name in ("hidden_size", "vocab_size") if name in llm},
        "has_media_tokens": False,
        "model_type": "ovis2",
        "text_config": {"model_type": "qwen2", **llm},
        "tie_word_embeddings": bool(llm.get("tie_word_embeddings", False)),
        "torch_dtype": config.get("torch_dtype"),
        "vision_config": {
            **{name: backbone[name] for name in _SAME if name in backbone},
            "hidden_stride": tokenizer.get("hidden_stride", 1),
            "mlp_bias": bool(backbone.get("use_bias", False)),
            "tokenize_function": tokenizer.get("tokenize_function", "softmax"),
            "vocab_size": tokenizer.get("vocab_size", 16384),
        },
    }


def _read_part(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = config.get(name)
    if not isinstance(part, Mapping):
        raise CheckpointError(f"{name} must be an object, got {str(part)[:40]!r}")
    return part
