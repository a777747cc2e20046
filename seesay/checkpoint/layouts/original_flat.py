"""MiniCPM-V, Phi-3-vision, GLM-4V and CogVLM as their authors publish them: the fields of a text model with those of a
tower beside them. Read as a LLaVA in Transformers' layout, which is a tower and a decoder, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import read_count, read_number
from seesay.checkpoint.layouts.original_llava import TOWERS
from seesay.checkpoint.layouts.original_text import read_chatglm
from seesay.errors import CheckpointError

_MOST_QUERIES = 1 << 12
_MOST_POSITIONS = 1 << 20
_MINICPMV_DECODERS = {"2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"}
_PHI3_V_OPTIONS: Mapping[str, object] = {
    "hd_transform_order": "sub_glb",
    "projection_cls": "mlp",
    "type_feature": "patch",
    "use_hd_transform": True,
    "with_learnable_separator": True,
}
_EVA_CLIP: Mapping[str, object] = {
    "model_type": "llava",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}
_LLAMA3_VOCABULARY, _LLAMA3_PADDING = 128256, 128002
_NOT_OF_TEXT = ("architectures", "auto_map", "embd_layer", "img_processor", "slice_config", "vision_config")


def read_minicpmv(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a SigLIP and of the decoder that `version` tells, which 2.5 leaves out. Raises
    `CheckpointError` naming a field that is not supported."""
    version = config.get("version", "2.5")
    name = f"{version:.1f}" if isinstance(version, int | float) else str(version)
    if name not in _MINICPMV_DECODERS:
        raise CheckpointError(f"version must be one of {', '.join(_MINICPMV_DECODERS)}, got {name[:40]!r}")
    count = config.get("query_num", 64)
    if type(count) is not int or not 1 <= count <= _MOST_QUERIES:
        raise CheckpointError(f"query_num must be an integer from 1 to {_MOST_QUERIES}, got {str(count)[:40]!r}")
    return {
        **_compose(config, _MINICPMV_DECODERS[name], _part(config, "vision_config"), "siglip_vision_model"),
        "version": name,
        "query_num": count,
        "drop_vision_last_layer": bool(config.get("drop_vision_last_layer", False)),
        "batch_vision_input": bool(config.get("batch_vision_input", True)),
    }


def read_phi3_v(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a Phi-3 and of a CLIP, which is called by its name or has its sizes in
    `vision_config`. Raises `CheckpointError` naming a field that is not supported."""
    tower = _part(config, "img_processor")
    given = {**_part(config, "embd_layer"), "type_feature": tower.get("type_feature", "patch")}
    for name, value in _PHI3_V_OPTIONS.items():
        if given.get(name) != value:
            raise CheckpointError(f"{name} must be {value!r}, got {str(given.get(name))[:40]!r}")
    called = str(tower.get("model_name"))
    vision = _part(config, "vision_config") if "vision_config" in config else TOWERS.get(called)
    if vision is None:
        known = ", ".join(name for name in TOWERS if "clip" in name)
        raise CheckpointError(f"img_processor.model_name must be one of {known}, got {called[:80]!r}")
    return {
        **_compose(config, "phi3", vision, "clip_vision_model"),
        "vision_feature_layer": tower.get("layer_idx", -2),
        "vision_feature_select_strategy": "default",
    }


def read_glm4v(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a GLM and of an EVA-CLIP, whose options are those of a CLIP. Raises `CheckpointError`
    naming a field that is not supported."""
    vision = _read_eva_clip(config)
    divisor = read_number(vision, "scaling_factor")
    text = read_chatglm(config)
    return {
        "architectures": text.pop("architectures"),
        **_EVA_CLIP,
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "vision_config": vision,
        "row_divisor": divisor,
        "row_merge": 2,
        "row_size": text["hidden_size"],
    }


def read_cogvlm(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a Llama and of an EVA-CLIP, whose options are those of a CLIP. The second CogVLM is a
    Llama 3, by whose vocabulary it is known: what its configuration leaves out is in its code. Raises `CheckpointError`
    naming a field that is not supported."""
    vision = _read_eva_clip(config)
    vocabulary = read_count(config, "vocab_size")
    is_second = config.get("num_multi_query_heads") is not None or vocabulary >= _LLAMA3_VOCABULARY
    return {
        "architectures": config.get("architectures"),
        **_EVA_CLIP,
        "text_config": _make_cogvlm_text(config, is_second=is_second),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "vision_config": vision,
        "has_expert_bias": is_second,
        "image_token_index": _read_padding(config, vocabulary, _LLAMA3_PADDING if is_second else 0),
        "row_divisor": 1.0,
        "row_merge": 2 if is_second else 1,
        "row_size": read_count(vision, "hidden_size"),
    }


def _make_cogvlm_text(config: Mapping[str, object], *, is_second: bool) -> dict[str, object]:
    heads = read_count(config, "num_attention_heads")
    if is_second:
        heads = read_count({"num_multi_query_heads": 8, **config}, "num_multi_query_heads")
    return {
        "rms_norm_eps": 1e-5 if is_second else 1e-6,
        **{name: value for name, value in config.items() if name not in _NOT_OF_TEXT},
        "model_type": "llama",
        "num_key_value_heads": heads,
        "qkv_layout": "joined",
        "rope_theta": 500000.0 if is_second else 10000.0,
    }


def _read_padding(config: Mapping[str, object], vocabulary: int, default: int) -> int:
    padding = config.get("pad_token_id", default)
    if type(padding) is not int or not 0 <= padding < vocabulary:
        raise CheckpointError(
            f"pad_token_id stands at the places of pictures: it must be an integer from 0 to {vocabulary - 1}, got "
            f"{str(padding)[:40]!r}"
        )
    return padding


def _read_eva_clip(config: Mapping[str, object]) -> dict[str, object]:
    """Return the tower's configuration as that of a CLIP."""
    vision = {**_part(config, "vision_config"), "model_type": "clip_vision_model"}
    for ours, theirs in (("num_attention_heads", "num_heads"), ("num_channels", "in_channels")):
        vision[ours] = vision.pop(theirs, None)
    side, patch, count = (
        read_count(vision, name, most=_MOST_POSITIONS) for name in ("image_size", "patch_size", "num_positions")
    )
    if (side // patch) ** 2 + 1 != count:
        raise CheckpointError(
            f"vision_config: num_positions={count} must be 1 more than the patches of image_size={side} and "
            f"patch_size={patch}"
        )
    return vision


def _compose(config: Mapping[str, object], decoder: str, vision: Mapping[str, object], tower: str) -> dict[str, object]:
    text = {name: value for name, value in config.items() if name not in _NOT_OF_TEXT}
    return {
        "architectures": config.get("architectures"),
        "model_type": "llava",
        "text_config": {**text, "model_type": decoder},
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "vision_config": {**vision, "model_type": tower},
    }


def _part(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = config.get(name)
    if not isinstance(part, Mapping):
        raise CheckpointError(f"{name} must be an object, got {str(part)[:40]!r}")
    return part
