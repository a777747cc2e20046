"""Configurations whose classes Transformers has not, but code beside the weights, which is not run: read as one of
Transformers' own that means the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seesay.checkpoint.layouts.late_interaction import read_late_interaction
from seesay.checkpoint.layouts.original_deepseek import read_deepseek_vl
from seesay.checkpoint.layouts.original_deepseek_ocr import FIRST, READ_AS, SECOND, read_deepseek_ocr
from seesay.checkpoint.layouts.original_deepseek_vl2 import read_deepseek_v3, read_deepseek_vl2
from seesay.checkpoint.layouts.original_flat import read_cogvlm, read_glm4v, read_minicpmv, read_phi3_v
from seesay.checkpoint.layouts.original_internvl import read_internvl_chat, read_tiling
from seesay.checkpoint.layouts.original_kimi import read_kimi_vl
from seesay.checkpoint.layouts.original_llava import read_llava, read_tower_processor
from seesay.checkpoint.layouts.original_mgm import read_mgm, read_mgm_processor
from seesay.checkpoint.layouts.original_molmo import read_molmo
from seesay.checkpoint.layouts.original_nemotron import read_nemotron_omni
from seesay.checkpoint.layouts.original_omni import THINKERS, read_omni
from seesay.checkpoint.layouts.original_ovis import read_ovis
from seesay.checkpoint.layouts.original_qwen import read_qwen, read_qwen_vl
from seesay.checkpoint.layouts.original_text import (
    read_baichuan,
    read_bloom,
    read_chatglm,
    read_deepseek,
    read_minicpm,
    read_mpt,
)
from seesay.checkpoint.layouts.original_ultravox import read_ultravox
from seesay.checkpoint.layouts.original_xcomposer import read_xcomposer2
from seesay.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedConfig:
    """`config`: a configuration of which Transformers has the class. `image_processor`: the settings that the published
    code takes, whatever the folder's files say; None where it reads these files."""

    config: Mapping[str, Any]
    image_processor: Mapping[str, Any] | None = None


_CODE = ("attn_implementation", "auto_map", "bias", "qkv_bias", "rotary")


def _as_llama(config: Mapping[str, object], **changes: object) -> ConvertedConfig:
    own = {name: value for name, value in config.items() if name not in _CODE}
    return ConvertedConfig(config={**own, "model_type": "llama", **changes})


def _read_internlm(config: Mapping[str, object]) -> ConvertedConfig:
    """InternLM is Llama with a bias in attention. Later configurations say how its positions are turned in `rotary`:
    {"base": …, "type": "origin" or "dynamic"}."""
    changes: dict[str, object] = {"attention_bias": bool(config.get("bias", True))}
    rotary = config.get("rotary", {})
    kind = rotary.get("type", "origin") if isinstance(rotary, Mapping) else None
    if not isinstance(rotary, Mapping) or kind not in ("origin", "dynamic"):
        raise CheckpointError(f'rotary must have the type "origin" or "dynamic", got {str(rotary)[:80]!r}')
    if kind == "dynamic":
        changes["rope_scaling"] = {"rope_type": "dynamic", "factor": rotary.get("scaling_factor", 1.0)}
    return _as_llama({"rope_theta": rotary.get("base", 10000.0), **config}, **changes)


def _read_internlm2(config: Mapping[str, object]) -> ConvertedConfig:
    """InternLM2 is Llama with other tensor names (arXiv 2403.17297, section 2.2)."""
    return _as_llama(config, attention_bias=bool(config.get("bias", True)), qkv_layout="grouped")


def _read_internlm3(config: Mapping[str, object]) -> ConvertedConfig:
    has_bias = bool(config.get("bias", False))
    if bool(config.get("qkv_bias", False)) != has_bias:
        raise CheckpointError(f"bias={has_bias} with another qkv_bias is not supported")
    return _as_llama(config, attention_bias=has_bias, mlp_bias=has_bias)


def _read_xcomposer2(config: Mapping[str, object]) -> ConvertedConfig:
    return ConvertedConfig(config=read_xcomposer2(config, _read_internlm2(config).config))


def _read_internvl_chat(config: Mapping[str, Any]) -> ConvertedConfig:
    for name in ("llm_config", "vision_config"):
        if not isinstance(config.get(name), Mapping):
            raise CheckpointError(f"{name} must be an object, got {str(config.get(name))[:40]!r}")
    known = read_internvl_chat(config, read_as_known(config["llm_config"]).config)
    return ConvertedConfig(config=known, image_processor=read_tiling(config))


def _read_llava(config: Mapping[str, Any]) -> ConvertedConfig:
    return ConvertedConfig(config=read_llava(config), image_processor=read_tower_processor(config))


def _read_mgm(config: Mapping[str, Any]) -> ConvertedConfig:
    return ConvertedConfig(config=read_mgm(config), image_processor=read_mgm_processor(config))


def _read_phimoe(config: Mapping[str, object]) -> ConvertedConfig:
    return ConvertedConfig(config={**config, "architectures": ["PhimoeForCausalLM"]})


def _read_chatglm(config: Mapping[str, object]) -> ConvertedConfig:
    has_tower = config.get("vision_config") is not None
    return ConvertedConfig(config=read_glm4v(config) if has_tower else read_chatglm(config))


def _read_kimi_k2(config: Mapping[str, object]) -> ConvertedConfig:
    """Kimi K2 is DeepSeek-V3 with other sizes (arXiv 2507.20534)."""
    kept = {name: config[name] for name in ("architectures", "torch_dtype") if name in config}
    return ConvertedConfig(config={**kept, **read_deepseek_v3(config)})


ConfigReader = Callable[[Mapping[str, Any]], ConvertedConfig]
"""Returns the stand-in for a config.json. Raises `CheckpointError` naming what cannot be read."""
_QWEN2_VL = "Qwen2VLForConditionalGeneration"
_BY_ARCHITECTURE: Mapping[str, ConfigReader] = {
    "CogVLMForCausalLM": lambda config: ConvertedConfig(config=read_cogvlm(config)),
    "CogVLMVideoForCausalLM": lambda config: ConvertedConfig(config=read_cogvlm(config)),
    FIRST: lambda config: ConvertedConfig(config=read_deepseek_ocr(config, FIRST)),
    SECOND: lambda config: ConvertedConfig(config=read_deepseek_ocr(config, SECOND)),
    "InternLMXComposer2ForCausalLM": _read_xcomposer2,
    "InternVLChatModel": _read_internvl_chat,
    "GmeQwen2VL": lambda config: ConvertedConfig(config={**config, "architectures": [_QWEN2_VL]}),
    "JinaVLForRanking": lambda config: ConvertedConfig(config={**config, "architectures": [_QWEN2_VL]}),
    "LlavaLlamaForCausalLM": _read_llava,
    "LlavaMistralForCausalLM": _read_llava,
    "LlavaQwenForCausalLM": _read_llava,
    "MGMGemmaForCausalLM": _read_mgm,
    "MGMLlamaForCausalLM": _read_mgm,
    "MGMMixtralForCausalLM": _read_mgm,
    "NemotronH_Nano_Omni_Reasoning_V3": lambda config: ConvertedConfig(config=read_nemotron_omni(config)),
    "PhiMoEForCausalLM": _read_phimoe,
}
_BY_MODEL_TYPE: Mapping[str, ConfigReader] = {
    **dict.fromkeys(THINKERS, lambda config: ConvertedConfig(config=read_omni(config))),
    "baichuan": lambda config: ConvertedConfig(config=read_baichuan(config)),
    "bloom": lambda config: ConvertedConfig(config=read_bloom(config)),
    "chatglm": _read_chatglm,
    "colpali": lambda config: ConvertedConfig(config=read_late_interaction(config)),
    "colqwen2": lambda config: ConvertedConfig(config=read_late_interaction(config)),
    "deepseek": lambda config: ConvertedConfig(config=read_deepseek(config)),
    "deepseek_vl_v2": lambda config: ConvertedConfig(config=read_deepseek_vl2(config)),
    "internlm": _read_internlm,
    "internlm2": _read_internlm2,
    "internlm3": _read_internlm3,
    "internlmxcomposer2": _read_xcomposer2,
    "kimi_k2": _read_kimi_k2,
    "kimi_vl": lambda config: ConvertedConfig(config=read_kimi_vl(config)),
    "minicpm": lambda config: ConvertedConfig(config=read_minicpm(config)),
    "minicpmv": lambda config: ConvertedConfig(config=read_minicpmv(config)),
    "molmo": lambda config: ConvertedConfig(config=read_molmo(config)),
    "multi_modality": lambda config: ConvertedConfig(config=read_deepseek_vl(config)),
    "mpt": lambda config: ConvertedConfig(config=read_mpt(config)),
    "ovis": lambda config: ConvertedConfig(config=read_ovis(config)),
    "phi3_v": lambda config: ConvertedConfig(config=read_phi3_v(config)),
    "qwen": lambda config: ConvertedConfig(
        config=(read_qwen if config.get("visual") is None else read_qwen_vl)(config)
    ),
    "ultravox": lambda config: ConvertedConfig(config=read_ultravox(config)),
}

_LLAVA = (
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
)
ORIGINALS: Mapping[str, tuple[str, ...]] = {
    SECOND: (READ_AS,),
    "GmeQwen2VL": (_QWEN2_VL,),
    "InternVLChatModel": ("InternVLForConditionalGeneration",),
    "JinaVLForRanking": (_QWEN2_VL,),
    "LlavaLlamaForCausalLM": _LLAVA,
    "LlavaMistralForCausalLM": _LLAVA,
    "LlavaQwenForCausalLM": _LLAVA,
    "MPTForCausalLM": ("MptForCausalLM",),
    "NemotronH_Nano_Omni_Reasoning_V3": ("NemotronH_Omni_Reasoning_V3",),
    "PhiMoEForCausalLM": ("PhimoeForCausalLM",),
    "Ovis": ("Ovis2ForConditionalGeneration",),
    "MultiModalityCausalLM": (
        "DeepseekVLForConditionalGeneration",
        "DeepseekVLHybridForConditionalGeneration",
    ),
}
"""The architectures that are read as another one, and as which."""


def read_as_known(config: Mapping[str, object]) -> ConvertedConfig:
    """Return the stand-in for a configuration; `config` itself unless it is known here. Raises `CheckpointError` naming
    what cannot be read."""
    names, kind = config.get("architectures"), config.get("model_type")
    first = names[0] if isinstance(names, list) and names else None
    reader = _BY_ARCHITECTURE.get(first) if isinstance(first, str) else None
    if reader is None and isinstance(kind, str):
        reader = _BY_MODEL_TYPE.get(kind)
    return ConvertedConfig(config=config) if reader is None else reader(config)
