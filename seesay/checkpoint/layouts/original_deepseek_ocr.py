"""DeepSeek-OCR and DeepSeek-OCR 2 as their authors publish them. The published code has the sizes of the towers as
constants; config.json repeats most of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import check_fields, read_count, read_part
from seesay.checkpoint.layouts.original_deepseek_vl2 import PLAIN_ATTENTION, TEXT_DEFAULTS, read_language
from seesay.errors import CheckpointError

FIRST, SECOND = "DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM"
READ_AS = "DeepseekOcr2ForConditionalGeneration"
"""The architecture of the second one in Transformers."""
_SAM = {
    "width": 768,
    "layers": 12,
    "heads": 12,
    "global_attn_indexes": [2, 5, 8, 11],
    "patch_size": 16,
    "window_size": 14,
    "output_channels": 256,
}
_CLIP = {"width": 1024, "layers": 24, "heads": 16, "image_size": 224, "patch_size": 14}
_QWEN = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
_MLP_RATIO = 4
_CHANNELS = {FIRST: [512, 1024], SECOND: [512, 896]}
"""Of the two convolutions behind the SAM. The second model's configuration names those of the first one."""
_MOST = 1 << 16
_IMAGE_SIZE = 1024


def read_deepseek_ocr(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the configuration of towers and decoder of the architecture `name`. Raises `CheckpointError` naming a
    field that is not supported."""
    check_fields(config, {"tile_tag": "2D"})
    check_fields(read_part(config, "projector_config"), {"projector_type": "linear"}, where="projector_config.")
    language = read_part(config, "language_config")
    own = {field: config[field] for field in (*TEXT_DEFAULTS, *language) if field in config}  # what the code reads
    text = read_language({**language, **own, "model_type": "deepseek_v2", "torch_dtype": None})
    if text["model_type"] != PLAIN_ATTENTION:
        raise CheckpointError(f"use_mla must be False, got {str(config.get('use_mla'))[:40]!r}")
    vision = read_part(config, "vision_config")
    widths = read_part(vision, "width")
    towers = {"sam_config": _read_sam(vision, widths, name)}
    known = {
        "text_config": text,
        "eos_token_id": text["eos_token_id"],
        "tie_word_embeddings": False,
        "torch_dtype": config.get("torch_dtype"),
    }
    if name == FIRST:
        towers["encoder_config"] = _read_clip({**_CLIP, **widths.get("clip-l-14-224", {})})
        kinds = {"architectures": [FIRST], "model_type": "llava"}
        return {**known, **kinds, "vision_config": {"model_type": "unlimited_ocr_vision", **towers}}
    towers["encoder_config"] = {**_QWEN, **vision.get("encoder_config", {})}
    kinds = {"architectures": [READ_AS], "model_type": "deepseek_ocr2"}
    return {**known, **kinds, "vision_config": towers}


def _read_sam(vision: Mapping[str, Any], widths: Mapping[str, Any], name: str) -> dict[str, Any]:
    sam = {"downsample_channels": _CHANNELS[name], **_SAM, **widths.get("sam_vit_b", {})}
    channels = sam["downsample_channels"]
    if name == SECOND and channels == _CHANNELS[FIRST]:
        channels = _CHANNELS[SECOND]
    size = read_count(sam, "width", most=_MOST)
    return {
        "hidden_size": size,
        "mlp_dim": _MLP_RATIO * size,
        "num_hidden_layers": read_count(sam, "layers", most=_MOST),
        "num_attention_heads": read_count(sam, "heads", most=_MOST),
        "global_attn_indexes": sam["global_attn_indexes"],
        "image_size": vision.get("image_size", _IMAGE_SIZE),
        "patch_size": sam["patch_size"],
        "window_size": sam["window_size"],
        "output_channels": sam["output_channels"],
        "downsample_channels": channels,
    }


def _read_clip(clip: Mapping[str, Any]) -> dict[str, Any]:
    size = read_count(clip, "width", most=_MOST)
    return {
        "hidden_size": size,
        "intermediate_size": _MLP_RATIO * size,
        "num_hidden_layers": read_count(clip, "layers", most=_MOST),
        "num_attention_heads": read_count(clip, "heads", most=_MOST),
        "image_size": read_count(clip, "image_size", most=_MOST),
        "patch_size": read_count(clip, "patch_size", most=_MOST),
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    }
