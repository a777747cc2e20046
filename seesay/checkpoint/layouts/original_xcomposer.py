"""InternLM-XComposer2 and 2.5 as their authors publish them: an InternLM2, and a CLIP whose sizes are constants of the
code. Read as a LLaVA in Transformers' layout, which is a tower and a decoder, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.layouts.original_llava import TOWERS
from seesay.errors import CheckpointError

ARCHITECTURE = "InternLMXComposer2ForCausalLM"
"""The class in `auto_map`; `architectures` of 4KHD has the one of the text model."""
_OWN = ("auto_map", "img_size", "internlm_lora", "vision_config", "max_length")
"""Fields that are not the decoder's."""


def read_xcomposer2(config: Mapping[str, object], text: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of the decoder, of which `text` is the stand-in, and of the tower, whose sizes a
    `vision_config` may change. The side of its pictures is not in config.json of all models; the table of positions has
    it. Raises `CheckpointError` naming a field that cannot be read."""
    vision = config.get("vision_config", {})
    if not isinstance(vision, Mapping):
        raise CheckpointError(f"vision_config must be an object, got {str(vision)[:40]!r}")
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llava",
        "has_media_tokens": False,
        "text_config": {name: value for name, value in text.items() if name not in _OWN},
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "vision_config": {
            **TOWERS["openai/clip-vit-large-patch14-336"],
            **vision,
            "model_type": "clip_vision_model",
        },
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    }
