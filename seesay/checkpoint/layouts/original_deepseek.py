"""DeepSeek-VL as its authors publish it, `MultiModalityCausalLM`: a text model, one tower or two, and an aligner, each
with the name of its class and that class's arguments. Read as the same model in Transformers' layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import read_count
from seesay.errors import CheckpointError

_SIGLIP: Mapping[str, object] = {"hidden_act": "gelu", "num_attention_heads": 16, "vision_use_head": False}
_TOWERS: Mapping[str, Mapping[str, object]] = {
    "siglip_large_patch16_384": {
        **_SIGLIP,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "patch_size": 16,
    },
    "sam_b_downsample": {
        "global_attn_indexes": [2, 5, 8, 11],
        "hidden_size": 768,
        "mlp_dim": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "output_channels": 256,
        "patch_size": 16,
        "window_size": 14,
    },
}
"""Sizes of published towers, by `model_name`."""
_ALIGNERS = {"CLIPVisionTower": "mlp_gelu", "HybridVisionTower": "low_high_hybrid_split_mlp_gelu"}
"""The aligner behind each class of towers."""


def read_deepseek_vl(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of DeepSeek-VL in Transformers, with one tower or two. Its towers know how pixels are
    normalized: `tower_statistics` has the mean and the deviation for each that does. Raises `CheckpointError` naming a
    field that is not supported."""
    vision, aligner = _read_part(config, "vision_config"), _read_part(config, "aligner_config")
    kind = vision.get("cls")
    if kind not in _ALIGNERS:
        raise CheckpointError(f"vision_config.cls must be {' or '.join(_ALIGNERS)}, got {str(kind)[:40]!r}")
    towers, projector = _read_params(vision, "vision_config"), _read_params(aligner, "aligner_config")
    for name, value in (("projector_type", _ALIGNERS[kind]), ("depth", 2)):
        if projector.get(name) != value:
            got = str(projector.get(name))[:60]
            raise CheckpointError(f"aligner_config.params.{name} must be {value} with a {kind}, got {got!r}")
    known = {
        "image_token": "<image_placeholder>",
        "text_config": {"model_type": "llama", **_read_part(config, "language_config")},
        "tie_word_embeddings": False,
        "torch_dtype": config.get("torch_dtype"),
    }
    if kind == "CLIPVisionTower":
        return {
            **known,
            "architectures": ["DeepseekVLForConditionalGeneration"],
            "model_type": "deepseek_vl",
            "tower_statistics": {"low": _read_statistics(towers)},
            "vision_config": _read_tower(towers, "siglip_vision_model"),
        }
    if towers.get("concat_type", "tuple") != "tuple":
        raise CheckpointError(f"concat_type must be tuple, got {str(towers['concat_type'])[:40]!r}")
    low, high = (_read_part(towers, f"{name}_res_cfg") for name in ("low", "high"))
    return {
        **known,
        "architectures": ["DeepseekVLHybridForConditionalGeneration"],
        "high_res_vision_config": _read_tower(high, "sam_vision_model"),
        "model_type": "deepseek_vl_hybrid",
        "tower_statistics": {"low": _read_statistics(low), "high": _read_statistics(high)},
        "vision_config": _read_tower(low, "siglip_vision_model"),
    }


def _read_part(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = config.get(name)
    if not isinstance(part, Mapping):
        raise CheckpointError(f"{name} must be an object, got {str(part)[:40]!r}")
    return part


def _read_params(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = config.get("params")
    if not isinstance(part, Mapping):
        raise CheckpointError(f"{name}.params must be an object, got {str(part)[:40]!r}")
    return part


def _read_tower(params: Mapping[str, object], kind: str) -> dict[str, object]:
    """Return the configuration of the tower called `model_name`. Fields of Transformers' configuration beside it count
    more."""
    name = params.get("model_name")
    fitting = {each: sizes for each, sizes in _TOWERS.items() if each.partition("_")[0] == kind.partition("_")[0]}
    known = fitting.get(name) if isinstance(name, str) else None
    if known is None:
        listed = ", ".join(fitting)
        raise CheckpointError(f"model_name of a {kind} must be {listed}, got {str(name)[:60]!r}")
    if params.get("select_layer", -1) != -1 or params.get("select_feature", "same") != "same":
        raise CheckpointError(f"{name}: select_layer must be -1 and select_feature same")
    given = {field: params[field] for field in known if field in params}
    return {**known, **given, "image_size": read_count(params, "image_size"), "model_type": kind}


def _read_statistics(params: Mapping[str, object]) -> dict[str, object] | None:
    """Return what a tower does with pixels in 0 … 1 before it takes them; None if nothing."""
    mean, std = params.get("pixel_mean"), params.get("pixel_std")
    return None if mean is None or std is None else {"image_mean": mean, "image_std": std}
