"""The one table that says which built-in template belongs to a checkpoint that has none of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from seesay.templates import builtin


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """One row: all conditions that are set must hold.

    template: a built-in name.
    architecture: the first of config.json's `architectures`.
    where: values in config.json by dotted key. A range holds for every number in it.
    generation: values in generation_config.json, in the same way.
    name: a pattern that is found in the last part of the model's path or hub id, in lower case.
    replaces_own: also for checkpoints that have a template, which their published code does not take.
    """

    template: str
    architecture: str = ""
    where: Mapping[str, str | range] = field(default_factory=dict)
    generation: Mapping[str, str | range] = field(default_factory=dict)
    name: str = ""
    replaces_own: bool = False

    def holds(self, name: str, config: Mapping[str, object], generation: Mapping[str, object]) -> bool:
        """Return whether the row is about the model of this name and these configurations."""
        if self.architecture and _architecture(config) != self.architecture:
            return False
        if self.name and not re.search(self.name, name):
            return False
        wanted = [(config, self.where), (generation, self.generation)]
        return all(_agrees(_value_at(found, key), value) for found, own in wanted for key, value in own.items())


_YI = range(64000, 65000)  # sizes of vocabularies, some with a few tokens for media or padding
_LLAMA3 = range(128256, 129000)
_XCOMPOSER = range(92544, 92700)
_ANY = range(1 << 40)

_INTERNVL = {
    "internvl_zh": "internvl-zh",
    "internlm2-chat": "internvl2-internlm2",
    "Hermes-2": "internvl2-internlm2",
    "phi3-chat": "internvl2-phi3",
    "internvl2_5": "internvl2_5",
}
"""Values of `template` in config.json, by which InternVL's own chat goes. The tokenizer's template is that of the text
model that it was made of."""

_FOR_EMBEDDINGS = ("ColPaliForRetrieval", "ColQwen2ForRetrieval")
"""Architectures whose families write all of the prompt but for what the user says."""

GUESSES: tuple[Guess, ...] = (
    *(Guess(template="base", architecture=name, replaces_own=True) for name in _FOR_EMBEDDINGS),
    Guess(template="qwen2-vl", architecture="Qwen2VLForConditionalGeneration"),
    Guess(template="qwen2-vl", architecture="Qwen2_5_VLForConditionalGeneration"),
    Guess(template="qwen3-vl", architecture="Qwen3VLForConditionalGeneration"),
    Guess(
        template="pixtral",
        architecture="LlavaForConditionalGeneration",
        where={"vision_config.model_type": "pixtral"},
    ),
    Guess(template="llava-hf", architecture="LlavaForConditionalGeneration", where={"text_config.model_type": "llama"}),
    Guess(
        template="llava-chatml",
        architecture="LlavaNextForConditionalGeneration",
        where={"text_config.vocab_size": _YI},
    ),
    Guess(
        template="llava-next-mistral",
        architecture="LlavaNextForConditionalGeneration",
        where={"text_config.model_type": "mistral"},
    ),
    Guess(
        template="llava-hf",
        architecture="LlavaNextForConditionalGeneration",
        where={"text_config.model_type": "llama", "text_config.vocab_size": range(32000, 33000)},
    ),
    Guess(
        template="llava-llama-3",
        architecture="LlavaNextForConditionalGeneration",
        where={"text_config.vocab_size": _LLAMA3},
    ),
    Guess(
        template="llava-qwen",
        architecture="LlavaNextForConditionalGeneration",
        where={"text_config.model_type": "qwen2"},
    ),
    Guess(template="llava-onevision", architecture="LlavaOnevisionForConditionalGeneration"),
    Guess(
        template="yi-vl",
        architecture="LlavaLlamaForCausalLM",
        where={"vocab_size": _YI, "mm_projector_type": "mlp2x_gelu_Norm"},
    ),
    Guess(template="llava-chatml", architecture="LlavaLlamaForCausalLM", where={"vocab_size": _YI}),
    Guess(template="llava-llama-3", architecture="LlavaLlamaForCausalLM", where={"vocab_size": _LLAMA3}),
    Guess(template="llava-llama-2", architecture="LlavaLlamaForCausalLM", name=r"llama-?2"),
    Guess(template="vicuna-v0", architecture="LlavaLlamaForCausalLM", name=r"-v0"),
    Guess(template="vicuna", architecture="LlavaLlamaForCausalLM"),  # LLaVA's evaluation takes vicuna_v1, not llava_v1
    Guess(template="mini-gemini-vicuna", architecture="MGMLlamaForCausalLM", where={"vocab_size": range(32000, 33000)}),
    Guess(
        template="mini-gemini-gemma",
        architecture="MGMGemmaForCausalLM",
        where={"vocab_size": range(256000, 257000)},
        replaces_own=True,
    ),
    Guess(
        template="mini-gemini-mistral",
        architecture="MGMMixtralForCausalLM",
        where={"vocab_size": range(32000, 33000)},
        replaces_own=True,
    ),
    Guess(template="llava-mistral", architecture="LlavaMistralForCausalLM", replaces_own=True),
    Guess(template="llava-qwen", architecture="LlavaQwenForCausalLM"),
    *(
        Guess(template=name, architecture="InternVLChatModel", where={"template": published}, replaces_own=True)
        for published, name in _INTERNVL.items()
    ),
    Guess(template="chatml", architecture="InternVLForConditionalGeneration"),
    Guess(template="llama3", architecture="MiniCPMV", where={"version": "2.5"}),
    Guess(template="minicpmv-2d6", architecture="MiniCPMV", where={"version": "2.6"}),
    Guess(template="deepseek-ocr", architecture="DeepseekOCRForCausalLM"),
    Guess(template="deepseek-ocr", architecture="DeepseekOCR2ForCausalLM"),
    Guess(template="deepseek-ocr", architecture="DeepseekOcr2ForConditionalGeneration"),
    Guess(template="deepseek-vl2", where={"model_type": "deepseek_vl_v2"}),
    Guess(template="molmo", architecture="MolmoForCausalLM", replaces_own=True),
    Guess(template="ovis2", architecture="Ovis", replaces_own=True),
    Guess(template="deepseek-vl", architecture="MultiModalityCausalLM"),
    Guess(template="base", architecture="CogVLMForCausalLM", where={"template_version": "base"}, replaces_own=True),
    Guess(template="cogvlm2", architecture="CogVLMForCausalLM", where={"vocab_size": _LLAMA3}, replaces_own=True),
    Guess(template="cogvlm", architecture="CogVLMForCausalLM", replaces_own=True),
    Guess(
        template="base", architecture="CogVLMVideoForCausalLM", where={"template_version": "base"}, replaces_own=True
    ),
    Guess(template="cogvlm2", architecture="CogVLMVideoForCausalLM", replaces_own=True),
    Guess(
        template="internlm-xcomposer2d5",
        architecture="InternLMXComposer2ForCausalLM",
        where={"vocab_size": _XCOMPOSER},
        name=r"xcomposer-?2(d|\.)5",
        replaces_own=True,
    ),
    Guess(
        template="internlm-xcomposer2",
        architecture="InternLMXComposer2ForCausalLM",
        where={"vocab_size": _XCOMPOSER},
        replaces_own=True,
    ),
    Guess(  # 4KHD, whose architecture is that of the text model
        template="internlm-xcomposer2",
        architecture="InternLM2ForCausalLM",
        where={"vocab_size": _XCOMPOSER, "model_type": "internlmxcomposer2"},
        replaces_own=True,
    ),
    Guess(template="glm4", architecture="ChatGLMModel", where={"vision_config.num_positions": _ANY}),
    Guess(
        template="qwen-vl",
        architecture="QWenLMHeadModel",
        where={"visual.image_start_id": _ANY},
        generation={"chat_format": "chatml"},
    ),
    Guess(template="qwen", architecture="QWenLMHeadModel", generation={"chat_format": "chatml"}),
    Guess(
        template="baichuan",
        architecture="BaichuanForCausalLM",
        where={"vocab_size": range(64000, 64001)},
        generation={"user_token_id": _ANY, "assistant_token_id": _ANY},
        name=r"^(?!.*base)",
    ),
    Guess(
        template="baichuan2",
        architecture="BaichuanForCausalLM",
        generation={"user_token_id": _ANY, "assistant_token_id": _ANY},
        name=r"^(?!.*base)",
    ),
    Guess(template="phi-3", architecture="Phi3VForCausalLM"),
    Guess(template="gemma3", architecture="Gemma3ForConditionalGeneration"),
    Guess(template="paligemma", architecture="PaliGemmaForConditionalGeneration"),
    Guess(template="mistral-v7", architecture="Mistral3ForConditionalGeneration"),
    Guess(template="smolvlm", architecture="SmolVLMForConditionalGeneration"),
    Guess(template="smolvlm", architecture="Idefics3ForConditionalGeneration"),
    # The architecture of a text model does not say whether it was trained to chat. Its name does.
    Guess(template="internvl2_5", name=r"internvl-?(2[._]5|3)"),
    Guess(template="internlm2", name=r"internlm-?(2|3)(?!.*base)"),
    Guess(template="baichuan2", name=r"baichuan-?2.*chat"),
    Guess(template="chatglm3", name=r"chatglm-?3(?!.*base)"),
    Guess(template="chatglm", name=r"chatglm-?2"),
    Guess(template="glm4", name=r"glm-?4(v|-9b-chat)"),
    Guess(template="yi-vl", name=r"yi-vl"),
    Guess(template="llava-mistral", name=r"llava.*mistral"),
    Guess(template="llava-chatml", name=r"llava.*34b"),
    Guess(template="vicuna", name=r"llava.*v1\.[56]|llava-1\.5"),
    Guess(template="vicuna", name=r"vicuna"),
    Guess(template="qwen-vl", name=r"qwen-?vl.*chat"),
    Guess(template="qwen2-vl", name=r"qwen-?2(\.5)?-vl"),
    Guess(template="qwen2d5", name=r"qwen-?2\.5.*instruct"),
    Guess(template="qwen3", name=r"qwen-?3(?!.*(base|vl|omni))"),
    Guess(template="qwen", name=r"qwen.*(chat|instruct)"),
    Guess(template="yi", name=r"\byi-.*chat"),
    Guess(template="llama3_2", name=r"llama-?3\.2.*instruct"),
    Guess(template="llama3_1", name=r"llama-?3\.[13].*instruct"),
    Guess(template="llama3", name=r"llama-?3.*instruct"),
    Guess(template="llama2", name=r"llama-?2.*chat"),
    Guess(template="mistral-v3", name=r"mistral.*instruct", where={"vocab_size": range(32768, 32769)}),
    Guess(template="mistral", name=r"mi[sx]tral.*instruct"),
    Guess(template="phi-4-mini", name=r"phi-?4-mini"),
    Guess(template="phi-4", name=r"phi-?4"),
    Guess(template="phi-3", name=r"phi-?3.*instruct"),
    Guess(template="gemma3", name=r"gemma-?3-.*-it"),
    Guess(template="gemma", name=r"gemma.*-it"),
    Guess(template="deepseek", name=r"deepseek(?!-?vl).*chat"),
    Guess(template="chatml", name=r"openhermes|chatml"),
)
"""The first row that holds is taken: what the checkpoint's configuration says first, then what its name says."""


def guess(
    model_path: str, config: Mapping[str, object] | None = None, generation: Mapping[str, object] | None = None
) -> str | None:
    """Return the name of the template that a model was trained with, or None if neither its config.json and
    generation_config.json nor its path or hub id tells. Classes that users registered with a `match` of their own are
    asked first."""
    if (name := builtin.match_registered(model_path)) is not None:
        return name
    last = name_of(model_path)
    return next((row.template for row in GUESSES if row.holds(last, config or {}, generation or {})), None)


def find_replacement(model_path: str, config: Mapping[str, object]) -> str | None:
    """Return the name of the template that is taken in place of the checkpoint's own; None where that is taken."""
    last = name_of(model_path)
    return next((row.template for row in GUESSES if row.replaces_own and row.holds(last, config, {})), None)


def name_of(model_path: str) -> str:
    """Return the name of a model, in lower case: the last part of its path or hub id."""
    parts = [part for part in re.split(r"[\\/]+", model_path.lower()) if part]
    # In the hub's cache the folder is models--org--name/snapshots/<commit>, so the name is not the last part.
    cached = [part for part in reversed(parts) if part.startswith("models--")]
    return (cached or parts[-1:] or [""])[0]


def _architecture(config: Mapping[str, object]) -> str | None:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _value_at(config: Mapping[str, object], key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _agrees(value: object, wanted: str | range) -> bool:
    if isinstance(wanted, range):
        return isinstance(value, int) and value in wanted
    return value is not None and str(value) == wanted
