"""Enrols every architecture of the registry in the tests: each needs a tiny checkpoint, under whose name it is tested.

Without one the architecture is enrolled under its own name, and all of its tests fail: `tiny_checkpoint` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from seesay.values import Modality
from seesay.vl.family import Family
from seesay.vl.registry import list_families


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A tiny checkpoint of `architecture` (a name of the registry), which `tests/vl/checkpoints.py` writes. A `variant`
    differs from the first checkpoint of its architecture in its decoder, tower or tokenizer: it is compared with
    Transformers, and left out of the tests that ask how the engine schedules. `published_as`: the architecture
    that its config.json names, if that is read as another one (`ORIGINALS`). `needs`: a package without which there is
    no model to compare it with; its tests are skipped then. `of_modules`: its decoder runs through Transformers'
    modules: it is not quantized, and takes new weights of whole folders alone."""

    architecture: str
    variant: bool = False
    published_as: str | None = None
    needs: str | None = None
    of_modules: bool = False


def _original(name: str, architecture: str) -> Tiny:
    return Tiny(architecture=architecture, variant=True, published_as=name)


CHECKPOINTS: Mapping[str, Tiny] = {
    "llama": Tiny(architecture="LlamaForCausalLM"),
    "qwen2": Tiny(architecture="Qwen2ForCausalLM"),
    "qwen3": Tiny(architecture="Qwen3ForCausalLM"),
    "mistral": Tiny(architecture="MistralForCausalLM"),
    "phi3": Tiny(architecture="Phi3ForCausalLM"),
    "gemma": Tiny(architecture="GemmaForCausalLM"),
    "gemma2": Tiny(architecture="Gemma2ForCausalLM"),
    "gemma3": Tiny(architecture="Gemma3ForCausalLM"),
    "internlm": Tiny(architecture="InternLMForCausalLM"),
    "internlm2": Tiny(architecture="InternLM2ForCausalLM"),
    "internlm3": Tiny(architecture="InternLM3ForCausalLM"),
    "smollm3": Tiny(architecture="SmolLM3ForCausalLM"),
    "starcoder2": Tiny(architecture="Starcoder2ForCausalLM"),
    "granite": Tiny(architecture="GraniteForCausalLM"),
    "olmo": Tiny(architecture="OlmoForCausalLM"),
    "olmo2": Tiny(architecture="Olmo2ForCausalLM"),
    "cohere": Tiny(architecture="CohereForCausalLM"),
    "glm": Tiny(architecture="GlmForCausalLM"),
    "glm4": Tiny(architecture="Glm4ForCausalLM"),
    "falcon": Tiny(architecture="FalconForCausalLM"),
    "falcon_groups": Tiny(architecture="FalconForCausalLM", variant=True),
    "falcon_alibi": Tiny(architecture="FalconForCausalLM", variant=True),
    "mixtral": Tiny(architecture="MixtralForCausalLM"),
    "qwen2_moe": Tiny(architecture="Qwen2MoeForCausalLM"),
    "qwen3_moe": Tiny(architecture="Qwen3MoeForCausalLM"),
    "qwen3_next": Tiny(architecture="Qwen3NextForCausalLM"),
    "qwen3_5_text": Tiny(architecture="Qwen3_5ForCausalLM"),
    "qwen3_5_moe_text": Tiny(architecture="Qwen3_5MoeForCausalLM"),
    "gpt_oss": Tiny(architecture="GptOssForCausalLM"),
    "gpt_oss_mxfp4": Tiny(architecture="GptOssForCausalLM", variant=True),
    "ernie4_5_moe": Tiny(architecture="Ernie4_5_MoeForCausalLM"),
    "deepseek_v2": Tiny(architecture="DeepseekV2ForCausalLM"),
    "deepseek_v3": Tiny(architecture="DeepseekV3ForCausalLM"),
    "lfm2": Tiny(architecture="Lfm2ForCausalLM"),
    "glm4_moe": Tiny(architecture="Glm4MoeForCausalLM"),
    "olmoe": Tiny(architecture="OlmoeForCausalLM"),
    "granitemoe": Tiny(architecture="GraniteMoeForCausalLM"),
    "granitemoeshared": Tiny(architecture="GraniteMoeSharedForCausalLM"),
    "bamba": Tiny(architecture="BambaForCausalLM"),
    "falcon_h1": Tiny(architecture="FalconH1ForCausalLM"),
    "jamba": Tiny(architecture="JambaForCausalLM"),
    "kimi_linear": Tiny(architecture="KimiLinearForCausalLM"),
    "nemotron_h": Tiny(architecture="NemotronHForCausalLM"),
    "nemotron_h_moe": Tiny(architecture="NemotronHForCausalLM", variant=True),
    "granite4": Tiny(architecture="GraniteMoeHybridForCausalLM"),
    "granite4_dense": Tiny(architecture="GraniteMoeHybridForCausalLM", variant=True),
    "phimoe": Tiny(architecture="PhimoeForCausalLM"),
    "phimoe_published": _original("PhiMoEForCausalLM", "PhimoeForCausalLM"),
    "deepseek_moe": Tiny(architecture="DeepseekForCausalLM"),
    "bloom": Tiny(architecture="BloomForCausalLM"),
    "mpt": Tiny(architecture="MptForCausalLM"),
    "mpt_original": _original("MPTForCausalLM", "MptForCausalLM"),
    "minicpm": Tiny(architecture="MiniCPMForCausalLM"),
    "baichuan": Tiny(architecture="BaiChuanForCausalLM"),
    "baichuan2": Tiny(architecture="BaichuanForCausalLM"),
    "baichuan2_13b": Tiny(architecture="BaichuanForCausalLM", variant=True),
    "chatglm": Tiny(architecture="ChatGLMModel"),
    "qwen": Tiny(architecture="QWenLMHeadModel"),
    "phi3_longrope": Tiny(architecture="Phi3ForCausalLM"),
    "phi4_mini": Tiny(architecture="Phi3ForCausalLM", variant=True),
    "qwen2_vl": Tiny(architecture="Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": Tiny(architecture="Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": Tiny(architecture="Qwen3VLForConditionalGeneration"),
    "qwen3_5": Tiny(architecture="Qwen3_5ForConditionalGeneration"),
    "qwen3_5_moe": Tiny(architecture="Qwen3_5MoeForConditionalGeneration"),
    "qwen3_vl_moe": Tiny(architecture="Qwen3VLMoeForConditionalGeneration"),
    "qwen3_vl_moe_published": Tiny(architecture="Qwen3VLMoeForConditionalGeneration", variant=True),
    "glm4v_moe": Tiny(architecture="Glm4vMoeForConditionalGeneration"),
    "glm4v": Tiny(architecture="Glm4vForConditionalGeneration"),
    "chatglm_4v": Tiny(architecture="ChatGLMModel/clip_vision_model"),
    "cogvlm": Tiny(architecture="CogVLMForCausalLM"),
    "cogvlm2": Tiny(architecture="CogVLMForCausalLM", variant=True),
    "cogvlm2_video": Tiny(architecture="CogVLMVideoForCausalLM"),
    "glm46v": Tiny(architecture="Glm46VForConditionalGeneration"),
    "lfm2_vl": Tiny(architecture="Lfm2VlForConditionalGeneration"),
    "llama4_text": Tiny(architecture="Llama4ForCausalLM"),
    "llama4": Tiny(architecture="Llama4ForConditionalGeneration"),
    "mllama": Tiny(architecture="MllamaForConditionalGeneration"),
    "llava": Tiny(architecture="LlavaForConditionalGeneration"),
    "gemma3_vision": Tiny(architecture="Gemma3ForConditionalGeneration"),
    "paligemma2": Tiny(architecture="PaliGemmaForConditionalGeneration"),
    "paligemma": Tiny(architecture="PaliGemmaForConditionalGeneration", variant=True),
    "pixtral": Tiny(architecture="LlavaForConditionalGeneration/pixtral"),
    "mistral3": Tiny(architecture="Mistral3ForConditionalGeneration"),
    "ministral3": Tiny(architecture="Mistral3ForConditionalGeneration", variant=True),
    "internvl": Tiny(architecture="InternVLForConditionalGeneration"),
    "internvl_qwen3_moe": Tiny(architecture="InternVLForConditionalGeneration", variant=True),
    "internvl_helium": Tiny(architecture="InternVLForConditionalGeneration", variant=True, of_modules=True),
    "internvl_gpt_oss": Tiny(architecture="InternVLForConditionalGeneration", variant=True),
    "internvl_chat": _original("InternVLChatModel", "InternVLForConditionalGeneration"),
    "internvl_chat_6b": _original("InternVLChatModel", "InternVLForConditionalGeneration"),
    "mono_internvl": Tiny(architecture="InternVLChatModel/intern_vit_patch"),
    "llava_next": Tiny(architecture="LlavaNextForConditionalGeneration"),
    "llava_interleave": Tiny(architecture="LlavaForConditionalGeneration", variant=True),
    "llava_onevision": Tiny(architecture="LlavaOnevisionForConditionalGeneration"),
    "llava_original": _original("LlavaLlamaForCausalLM", "LlavaForConditionalGeneration"),
    "llava_next_original": _original("LlavaMistralForCausalLM", "LlavaNextForConditionalGeneration"),
    "llava_onevision_original": _original("LlavaQwenForCausalLM", "LlavaOnevisionForConditionalGeneration"),
    "mini_gemini": Tiny(architecture="MGMLlamaForCausalLM", needs="timm"),
    "mini_gemini_gemma": Tiny(architecture="MGMGemmaForCausalLM", needs="timm"),
    "mini_gemini_mixtral": Tiny(architecture="MGMMixtralForCausalLM", needs="timm"),
    "mini_gemini_hd": Tiny(architecture="MGMLlamaForCausalLM", variant=True, needs="timm"),
    "minicpmv": Tiny(architecture="MiniCPMV"),
    "minicpmv_2_5": Tiny(architecture="MiniCPMV", variant=True),
    "minicpmv_4_5": Tiny(architecture="MiniCPMV", variant=True),
    "minicpmv4_6": Tiny(architecture="MiniCPMV4_6ForConditionalGeneration"),
    "minicpmv4_6_fine": Tiny(architecture="MiniCPMV4_6ForConditionalGeneration", variant=True),
    "phi3_v": Tiny(architecture="Phi3VForCausalLM"),
    "qwen_vl": Tiny(architecture="QWenLMHeadModel/clip_vision_model"),
    "molmo": Tiny(architecture="MolmoForCausalLM"),
    "molmo_olmo2": Tiny(architecture="MolmoForCausalLM", variant=True),
    "xcomposer2d5": Tiny(architecture="InternLMXComposer2ForCausalLM"),
    "xcomposer2": Tiny(architecture="InternLMXComposer2ForCausalLM", variant=True),
    "xcomposer2_4khd": Tiny(architecture="InternLMXComposer2ForCausalLM", variant=True),
    "deepseek_vl2": Tiny(architecture="DeepseekVLV2ForCausalLM"),
    "deepseek_vl2_sigmoid": Tiny(architecture="DeepseekVLV2ForCausalLM", variant=True),
    "deepseek_vl2_plain": Tiny(architecture="DeepseekVLV2ForCausalLM", variant=True),
    "deepseek_ocr": Tiny(architecture="DeepseekOCRForCausalLM"),
    "deepseek_ocr2": Tiny(architecture="DeepseekOcr2ForConditionalGeneration"),
    "ernie4_5_vl": Tiny(architecture="Ernie4_5_VLMoeForConditionalGeneration"),
    "nemotron_h_omni": Tiny(architecture="NemotronH_Omni_Reasoning_V3"),
    "nemotron_h_omni_original": _original("NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3"),
    "voxtral": Tiny(architecture="VoxtralForConditionalGeneration"),
    "phi4_multimodal": Tiny(architecture="Phi4MultimodalForCausalLM"),
    "ultravox": Tiny(architecture="UltravoxModel"),
    "kimi_vl": Tiny(architecture="KimiVLForConditionalGeneration"),
    "perception_lm": Tiny(architecture="PerceptionLMForConditionalGeneration", needs="timm"),
    "perception_lm_timm": Tiny(architecture="PerceptionLMForConditionalGeneration", variant=True, needs="timm"),
    "fast_vlm": Tiny(architecture="FastVlmForConditionalGeneration", needs="timm"),
    "idefics3": Tiny(architecture="Idefics3ForConditionalGeneration"),
    "smolvlm": Tiny(architecture="SmolVLMForConditionalGeneration", needs="num2words"),
    "deepseek_vl": Tiny(architecture="DeepseekVLForConditionalGeneration"),
    "deepseek_vl_original": _original("MultiModalityCausalLM", "DeepseekVLForConditionalGeneration"),
    "deepseek_vl_hybrid_original": _original("MultiModalityCausalLM", "DeepseekVLHybridForConditionalGeneration"),
    "ovis2": Tiny(architecture="Ovis2ForConditionalGeneration"),
    "ovis2_original": _original("Ovis", "Ovis2ForConditionalGeneration"),
    "ovis2_hard": Tiny(architecture="Ovis2ForConditionalGeneration", variant=True),
    "deepseek_vl_hybrid": Tiny(architecture="DeepseekVLHybridForConditionalGeneration"),
    "llava_next_mistral": Tiny(architecture="LlavaNextForConditionalGeneration", variant=True),
    "llava_next_llama3": Tiny(architecture="LlavaNextForConditionalGeneration", variant=True),
    "llava_next_qwen": Tiny(architecture="LlavaNextForConditionalGeneration", variant=True),
}

MODULES: Mapping[str, str] = {
    "cohere2": "Cohere2ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "granitemoe_swa": "GraniteMoeSWAForCausalLM",
    "jetmoe": "JetMoeForCausalLM",
    "longcat_flash": "LongcatFlashForCausalLM",
    "opt": "OPTForCausalLM",
}
"""Tiny checkpoints of architectures that run through Transformers' modules: layers without positions and with windows,
keys that are larger than values, experts that look at values to find their tokens, sinks, learned positions,
attention and feed-forward side by side, embeddings for each layer, layers that share keys and values, windows that
are in the mask alone."""

VISION_MODULES: Mapping[str, str] = {
    "aria": "AriaForConditionalGeneration",
    "aya_vision": "AyaVisionForConditionalGeneration",
    "cohere2_vision": "Cohere2VisionForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_small": "Gemma4ForConditionalGeneration",
    "gemma4_large": "Gemma4ForConditionalGeneration",
    "glm_ocr": "GlmOcrForConditionalGeneration",
    "hunyuan_vl": "HunYuanVLForConditionalGeneration",
    "lighton_ocr": "LightOnOcrForConditionalGeneration",
    "paddleocr_vl": "PaddleOCRVLForConditionalGeneration",
    "qianfan_ocr": "QianfanOCRForConditionalGeneration",
    "llava_next_video": "LlavaNextVideoForConditionalGeneration",
    "vipllava": "VipLlavaForConditionalGeneration",
}
"""Those with pictures, tower and processor included: queries over patches, numbered tiles, tiles with tokens between
them, pictures of any size, tiles with learned rows, rows of several layers, a marker that is no token of rows, tokens
of a picture that see each other in some layers."""

AUDIO_MODULES: Mapping[str, str] = {
    "glmasr": "GlmAsrForConditionalGeneration",
    "qwen2_audio": "Qwen2AudioForConditionalGeneration",
    "gemma3n": "Gemma3nForConditionalGeneration",
    "gemma4_audio": "Gemma4ForConditionalGeneration",
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
"""Those with audio, tower and processor included: one audio in a prompt, and several; the last four take pictures
beside it, two of them with positions of several axes."""


EMBEDDERS: Mapping[str, str] = {
    "colpali": "ColPaliForRetrieval",
    "colqwen2": "ColQwen2ForRetrieval",
    "colqwen2_5": "ColQwen2_5ForRetrieval",
}
"""Those of families that make embeddings and no text: tests/vl/test_late_interaction.py compares them."""

OWN_CODE: Mapping[str, str] = {"orbit": "OrbitForCausalLM", "orbit_vl": "OrbitVLForConditionalGeneration"}
"""Those whose code lies beside their weights (`tests/remote_code`): of texts, and of texts with pictures."""


def enrol(families: Mapping[str, type[Family]], checkpoints: Mapping[str, Tiny]) -> dict[str, type[Family]]:
    """Return the family of each name that is tested: of every checkpoint, and of every architecture that has none.
    Raises `ValueError` naming a checkpoint of an architecture that no family claims."""
    for name, tiny in checkpoints.items():
        if tiny.architecture not in families:
            raise ValueError(f"tiny checkpoint {name!r} is a {tiny.architecture}, which no family claims")
    named = {name: families[tiny.architecture] for name, tiny in checkpoints.items()}
    covered = {tiny.architecture for tiny in checkpoints.values() if not tiny.variant}
    return named | {architecture: family for architecture, family in families.items() if architecture not in covered}


SIBLING = "sibling"
"""In a tiny checkpoint whose architecture Transformers has only as code beside the weights: the folder of an equal
model of an architecture that it has itself."""


def reference_of(path: Path) -> Path:
    """Return the folder of the model that Transformers loads in place of the tiny checkpoint `path`: mostly that."""
    return path / SIBLING if (path / SIBLING).exists() else path


def without_checkpoint(name: str) -> str:
    """Return the message for a name of `enrol` that has no checkpoint."""
    return (
        f"{name} has no tiny checkpoint: name one in tests/support/enrolment.py, and write its factory in "
        "tests/vl/checkpoints.py"
    )


def list_writers() -> dict[str, type[Family]]:
    """Return the families of models that answer, by the architectures they claim."""
    return {name: family for name, family in list_families().items() if family.writes_text}


ENROLLED: Mapping[str, type[Family]] = enrol(list_writers(), CHECKPOINTS)


def is_variant(name: str) -> bool:
    return name in CHECKPOINTS and CHECKPOINTS[name].variant


def is_third(name: str) -> bool:
    """Return whether two checkpoints of the same architecture are named before this one."""
    if name not in CHECKPOINTS:
        return False
    alike = [other for other, tiny in CHECKPOINTS.items() if tiny.architecture == CHECKPOINTS[name].architecture]
    return alike.index(name) >= 2


def _without_variants(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not is_variant(name))


def takes(name: str, modality: Modality) -> bool:
    """Return whether the model `name` takes media of this kind."""
    return modality in ENROLLED[name].modalities


ALL_VISION = tuple(name for name, family in ENROLLED.items() if Modality.IMAGE in family.modalities)
"""Every checkpoint of a family with a tower for pictures, variants included."""
ALL_AUDIO = tuple(name for name, family in ENROLLED.items() if Modality.AUDIO in family.modalities)
"""Every checkpoint of a family with a tower for audio: tests/engine/test_audio.py compares them."""
WITH_PICTURES = (*ALL_VISION, *VISION_MODULES, "orbit_vl")
FAMILIES = _without_variants(ALL_VISION)
WITH_EXPERTS = (
    "deepseek_moe", "deepseek_ocr", "deepseek_ocr2", "deepseek_v2", "deepseek_v3", "deepseek_vl2",
    "deepseek_vl2_plain", "deepseek_vl2_sigmoid",
    "ernie4_5_moe", "ernie4_5_vl", "glm4_moe", "glm4v_moe", "gpt_oss", "gpt_oss_mxfp4", "granite4", "granitemoe",
    "granitemoeshared",
    "internvl_gpt_oss", "internvl_qwen3_moe", "jamba", "kimi_linear", "kimi_vl", "llama4", "llama4_text", "mixtral",
    "nemotron_h_moe", "nemotron_h_omni_original",
    "olmoe", "phimoe", "phimoe_published", "qwen2_moe",
    "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next", "qwen3_vl_moe", "qwen3_vl_moe_published",
)  # fmt: skip
"""Those whose decoder is ours and has experts."""
WITH_STATES = (
    "bamba", "falcon_h1", "granite4", "granite4_dense", "jamba", "kimi_linear", "lfm2", "lfm2_vl", "minicpmv4_6",
    "minicpmv4_6_fine", "nemotron_h",
    "nemotron_h_moe", "nemotron_h_omni", "nemotron_h_omni_original", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
    "qwen3_5_text", "qwen3_next",
)  # fmt: skip
"""Those whose layers keep a state of each sequence, which is not kept in host memory."""
WITH_LATENT_ROWS = ("deepseek_v2", "deepseek_v3", "deepseek_vl2", "deepseek_vl2_sigmoid", "kimi_linear", "kimi_vl")
"""Those whose layers attend to latent rows."""
OF_MODULES = tuple(name for name, tiny in CHECKPOINTS.items() if tiny.of_modules)
COMPOSED = tuple(name for name in FAMILIES if name not in OF_MODULES)
"""Those of `FAMILIES` whose decoder is ours."""
BACKBONES = _without_variants(name for name, family in ENROLLED.items() if not family.modalities)
VARIANTS = tuple(filter(is_variant, ENROLLED))
PREFIX_LMS = tuple(name for name, family in ENROLLED.items() if family.is_prefix_lm)
"""Every checkpoint, variants included, whose prompts are computed in one step, for each of their tokens sees all."""
VIDEO_FAMILIES = tuple(name for name in FAMILIES if takes(name, Modality.VIDEO))
MROPE_FAMILIES = tuple(name for name in FAMILIES if ENROLLED[name].num_position_axes == 3)
