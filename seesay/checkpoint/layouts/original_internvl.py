"""InternVL as its authors publish it, `InternVLChatModel`: read as the same model in Transformers' layout.

Fields and their defaults are those of the classes beside the weights; none of that code is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.errors import CheckpointError

_TOWER: Mapping[str, object] = {
    "hidden_act": "gelu",
    "hidden_size": 3200,
    "image_size": 224,
    "intermediate_size": 12800,
    "layer_norm_eps": 1e-6,
    "norm_type": "rms_norm",
    "num_attention_heads": 25,
    "num_channels": 3,
    "num_hidden_layers": 48,
    "patch_size": 14,
}
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_BICUBIC = 3
_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "pad2square": (False,),
    "ps_version": ("v1", "v2"),
    "use_backbone_lora": (0,),
    "use_llm_lora": (0,),
}


def read_internvl_chat(config: Mapping[str, Any], text_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an InternVLForConditionalGeneration. `text_config` is that of its decoder, of a class
    that Transformers has. Raises `CheckpointError` naming a field that is not supported."""
    vision = {name: config["vision_config"].get(name, default) for name, default in _TOWER.items()}
    for name, allowed in {**_SUPPORTED, "force_image_size": (None, vision["image_size"])}.items():
        if name in config and config[name] not in allowed:
            listed = " or ".join(map(str, allowed))
            raise CheckpointError(f"{name} must be {listed}, got {str(config[name])[:40]!r}")
    vision |= {
        "attention_bias": bool(config["vision_config"].get("qkv_bias", False)),
        "qk_norm_eps": vision["layer_norm_eps"],
        "use_qk_norm": bool(config["vision_config"].get("qk_normalization", True)),
        "use_mean_pooling": True,  # no norm follows the last layer
    }
    return {
        "architectures": ["InternVLForConditionalGeneration"],
        "model_type": "internvl",
        "downsample_ratio": config.get("downsample_ratio", 0.5),
        "projector_hidden_act": "gelu",
        "ps_version": config.get("ps_version", "v1"),
        "text_config": text_config,
        "tie_word_embeddings": bool(text_config.get("tie_word_embeddings", False)),
        "vision_config": vision,
        "vision_feature_layer": config.get("select_layer", -1),
        "vision_feature_select_strategy": "default",
    }


def read_tiling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the image processor, which the published code has as constants and in config.json."""
    side = config["vision_config"].get("image_size", _TOWER["image_size"])
    is_cut = bool(config.get("dynamic_image_size", False))
    return {
        **_IMAGENET,
        "resample": _BICUBIC,
        "size": {"height": side, "width": side},
        "min_patches": config.get("min_dynamic_patch", 1) if is_cut else 1,
        "max_patches": config.get("max_dynamic_patch", 6) if is_cut else 1,
        "use_thumbnail": bool(config.get("use_thumbnail", False)),
    }
