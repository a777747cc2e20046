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
_PATCHES, _VISUAL_EXPERTS = "intern_vit_patch", "InternLM2VEForCausalLM"
"""The tower that is no more than its embeddings, and the decoder that goes with it."""


def read_internvl_chat(config: Mapping[str, Any], text_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an InternVLForConditionalGeneration, or of a Mono-InternVL (arXiv 2410.08202).
    `text_config` is that of its decoder, of a class that Transformers has. Raises `CheckpointError` naming a field that
    is not supported."""
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
    known = {
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
    return known | _leave_patches(config, vision)


def _leave_patches(config: Mapping[str, Any], vision: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the configuration of a Mono-InternVL has in place of that of an InternVL with this `vision_config`:
    a tower without layers, whatever their number says. Nothing for an InternVL."""
    kind, decoder = config["vision_config"].get("model_type"), config["llm_config"].get("architectures")
    if (kind == _PATCHES) != (decoder == [_VISUAL_EXPERTS]):
        raise CheckpointError(
            f"llm_config.architectures must be [{_VISUAL_EXPERTS!r}] where vision_config.model_type is {_PATCHES!r}, "
            f"and only there, got {str(decoder)[:80]} with {str(kind)[:40]!r}"
        )
    if kind != _PATCHES:
        return {}
    patches = {**vision, "model_type": _PATCHES, "num_hidden_layers": 0}
    return {"architectures": config["architectures"], "vision_config": patches}


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
