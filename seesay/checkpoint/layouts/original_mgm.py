"""Mini-Gemini as its authors publish it, `MGMLlamaForCausalLM` and others: LLaVA and the fields of a second tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.layouts.original_llava import read_llava, read_tower_processor
from seesay.errors import CheckpointError

_FOLDER = "openai/"
"""Of towers on the hub. In config.json they lie in a folder of the authors' machine."""
_DECODERS = {"MGMLlamaForCausalLM": "llama", "MGMGemmaForCausalLM": "gemma", "MGMMixtralForCausalLM": "mixtral"}


def read_mgm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a LLaVA with the fields of the second tower: `image_size_aux`, `image_grid`,
    `image_global`; and `scales_rows`: a Gemma multiplies rows of pictures by the factor of its embeddings. Raises
    `CheckpointError` naming a field that is not supported."""
    for name in ("mm_vision_tower_aux", "image_size_aux"):
        if config.get(name) is None:
            raise CheckpointError(f"{name} is missing: a Mini-Gemini without its second tower is not supported")
    if config.get("mm_vision_select_feature", "patch") != "patch":
        raise CheckpointError("mm_vision_select_feature must be patch")
    known = read_llava({**_as_llava(config), "image_aspect_ratio": None})
    decoder = _DECODERS[config["architectures"][0]]
    is_gemma = decoder == "gemma"
    detail = {"image_grid": config.get("image_grid", 1), "image_global": bool(config.get("image_global", False))}
    return {
        **known,
        "architectures": config["architectures"],
        "text_config": {**known["text_config"], "model_type": decoder},
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", is_gemma)),
        "scales_rows": is_gemma,
        "image_size_aux": config["image_size_aux"],
        "mm_vision_tower_aux": str(config["mm_vision_tower_aux"]),
        **detail,
    }


def read_mgm_processor(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the image processor, which makes the larger picture."""
    side = config.get("image_size_aux")
    size = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    return {**read_tower_processor(_as_llava(config)), **size}


def _as_llava(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the name that the tower has on the hub, which that of its folder ends with."""
    tower = str(config.get("mm_vision_tower", "")).rpartition("/")[2]
    return {**config, "architectures": ["LlavaLlamaForCausalLM"], "mm_vision_tower": _FOLDER + tower}
