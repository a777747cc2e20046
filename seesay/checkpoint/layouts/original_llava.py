"""LLaVA as its authors publish it, `LlavaLlamaForCausalLM` and others: the fields of a text model with those of a tower
beside them. Read as the same model in Transformers' layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seesay.errors import CheckpointError

_CLIP_LARGE: Mapping[str, object] = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
}
_SIGLIP: Mapping[str, object] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "image_size": 384,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 26,  # of 27: the published code deletes the last one
    "patch_size": 14,
    "vision_use_head": False,
}
TOWERS: Mapping[str, Mapping[str, object]] = {
    "openai/clip-vit-large-patch14": {**_CLIP_LARGE, "image_size": 224},
    "openai/clip-vit-large-patch14-336": _CLIP_LARGE,
    "google/siglip-so400m-patch14-384": _SIGLIP,
}
"""Configurations of published towers, by their names (`mm_vision_tower`)."""

_BICUBIC = 3
_CLIP_STATISTICS = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_HALVES = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}

_DECODERS = {"LlavaLlama": "llama", "LlavaMistral": "mistral", "LlavaQwen": "qwen2"}
_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "mm_projector_type": ("mlp2x_gelu",),
    "mm_resampler_type": (None,),
    "mm_use_im_start_end": (False,),
    "mm_vision_select_feature": ("patch", "cls_patch"),
}
_OF_TILES = {"mm_patch_merge_type": ("spatial_unpad",)}
_OF_VIDEOS = {"mm_spatial_pool_mode": ("bilinear",), "mm_newline_position": ("one_token",)}
_GRIDS = re.compile(r"\((\d{1,2})x(\d{1,2})\), ?\.\.\., ?\((\d{1,2})x(\d{1,2})\)")
_NOT_OF_TEXT = re.compile(r"(?:mm|image|vision|tokenizer|tune_mm|(?:un)?freeze_mm|use_mm)_|architectures$|auto_map$")


def read_llava(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a model of Transformers: LLaVA-1.5, NeXT or OneVision, by how pictures are cut.
    Raises `CheckpointError` naming a field that is not supported."""
    _check(config, _SUPPORTED)
    decoder = _DECODERS[config["architectures"][0].removesuffix("ForCausalLM")]
    text = {name: value for name, value in config.items() if not _NOT_OF_TEXT.match(name)}
    vision = _read_tower(config)
    is_clip = vision["model_type"] == "clip_vision_model"
    drops_class_row = is_clip and config.get("mm_vision_select_feature", "patch") == "patch"
    return {
        **_read_cutting(config, vision["image_size"], is_clip=is_clip),
        "has_media_tokens": False,
        "projector_hidden_act": "gelu",
        "text_config": {**text, "model_type": decoder},
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "unpadding_digits": None,
        "vision_config": vision,
        "vision_feature_layer": config.get("mm_vision_select_layer", -2) if is_clip else -1,
        "vision_feature_select_strategy": "default" if drops_class_row else "full",
    }


def read_tower_processor(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings of the tower's image processor, of which the folder has no file."""
    vision = _read_tower(config)
    square = {"height": vision["image_size"], "width": vision["image_size"]}
    own = {"resample": _BICUBIC, "do_pad": config.get("image_aspect_ratio") == "pad"}
    if vision["model_type"] == "clip_vision_model":
        cropped = {"size": {"shortest_edge": vision["image_size"]}, "crop_size": square, "do_center_crop": True}
        return {**own, **_CLIP_STATISTICS, **cropped}
    return {**own, **_HALVES, "size": square}


def _read_tower(config: Mapping[str, object]) -> dict[str, Any]:
    name = config.get("mm_vision_tower", config.get("vision_tower"))
    given = config.get("vision_config")
    known = TOWERS.get(name) if isinstance(name, str) else None
    vision = {**(known or {}), **(given if isinstance(given, Mapping) else {})}
    needed = ("model_type", "image_size")
    if not all(field in vision for field in needed):
        listed = ", ".join(sorted(TOWERS))
        raise CheckpointError(
            f"mm_vision_tower must be one of {listed}, got {str(name)[:80]!r}: for another one, give its configuration "
            "as hf_overrides={'vision_config': {…}}"
        )
    return vision


def _read_cutting(config: Mapping[str, object], side: int, *, is_clip: bool) -> dict[str, Any]:
    """Return the fields of the model that cuts pictures as `image_aspect_ratio` says. side: that of a tile."""
    ratio = config.get("image_aspect_ratio")
    if ratio in (None, "square", "pad"):
        return {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
    if not re.fullmatch(r"anyres(_max_[1-9]\d{0,2})?", str(ratio)):
        raise CheckpointError(
            f"image_aspect_ratio must be square, pad, anyres or anyres_max_N, got {str(ratio)[:40]!r}"
        )
    _check(config, _OF_TILES)
    points = {"image_grid_pinpoints": _read_points(config, side)}
    if is_clip != (ratio == "anyres"):
        raise CheckpointError(
            f"image_aspect_ratio={ratio!r} with such a tower is not supported: anyres has a CLIP, anyres_max_N a SigLIP"
        )
    if is_clip:
        return {"architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next", **points}
    _check(config, _OF_VIDEOS)
    return {
        "architectures": ["LlavaOnevisionForConditionalGeneration"],
        "model_type": "llava_onevision",
        "vision_aspect_ratio": ratio,
        **points,
    }


def _read_points(config: Mapping[str, object], side: int) -> list[list[int]]:
    """Return the resolutions as [height, width]. The published code has width first."""
    given = config.get("image_grid_pinpoints")
    points = _parse_points(given, side) if isinstance(given, str) else given
    if not isinstance(points, list) or not points or not all(isinstance(p, list) and len(p) == 2 for p in points):
        raise CheckpointError(f"image_grid_pinpoints must be a list of [width, height], got {str(given)[:80]!r}")
    return [[height, width] for width, height in points]


def _parse_points(text: str, side: int) -> list[list[int]]:
    """Return the resolutions [width, height] in a text; "(1x1),...,(6x6)" are grids of tiles of `side` pixels."""
    if (ends := _GRIDS.fullmatch(text)) is None:
        return [[int(width), int(height)] for width, height in re.findall(r"[(\[](\d{1,5}), ?(\d{1,5})[)\]]", text)]
    columns = range(int(ends[1]), int(ends[3]) + 1)
    rows = range(int(ends[2]), int(ends[4]) + 1)
    return [[column * side, row * side] for column in columns for row in rows]


def _check(config: Mapping[str, object], supported: Mapping[str, tuple[object, ...]]) -> None:
    for name, allowed in supported.items():
        if name in config and config[name] not in allowed:
            listed = " or ".join(map(str, allowed))
            raise CheckpointError(f"{name} must be {listed}, got {str(config[name])[:40]!r}")
