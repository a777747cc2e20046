"""The built-in templates by name, and the models they belong to."""

from __future__ import annotations

import re

from seesay.errors import ConfigError
from seesay.templates.pieces import Pieces

_CHATML = Pieces(
    system="<|im_start|>system\n",
    eosys="<|im_end|>\n",
    user="<|im_start|>user\n",
    eoh="<|im_end|>\n",
    assistant="<|im_start|>assistant\n",
    eoa="<|im_end|>",
    separator="\n",
    stop_words=("<|im_end|>", "<|endoftext|>"),
)

_VICUNA = Pieces(
    meta_instruction="A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions.",
    eosys=" ",
    user="USER: ",
    eoh=" ",
    assistant="ASSISTANT: ",
    generation_prompt="ASSISTANT:",
    eoa="</s>",
    stop_words=("</s>",),
)

_LLAMA3 = Pieces(
    system="<|start_header_id|>system<|end_header_id|>\n\n",
    eosys="<|eot_id|>",
    user="<|start_header_id|>user<|end_header_id|>\n\n",
    eoh="<|eot_id|>",
    assistant="<|start_header_id|>assistant<|end_header_id|>\n\n",
    eoa="<|eot_id|>",
    tool="<|start_header_id|>ipython<|end_header_id|>\n\n",
    eotool="<|eot_id|>",
    stop_words=("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
)

_BUILTIN: dict[str, Pieces] = {
    "base": Pieces(is_completion=True),
    "chatml": _CHATML,
    "qwen": _CHATML.with_changes({"meta_instruction": "You are a helpful assistant."}),
    "qwen2d5": _CHATML.with_changes(
        {"meta_instruction": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}
    ),
    "vicuna": _VICUNA,
    "llava-v1": _VICUNA.with_changes(
        {
            "meta_instruction": "A chat between a curious human and an artificial intelligence assistant. "
            "The assistant gives helpful, detailed, and polite answers to the human's questions.",
            "generation_prompt": "ASSISTANT:",
        }
    ),
    "llama2": Pieces(
        system="[INST] <<SYS>>\n",
        meta_instruction="You are a helpful, respectful and honest assistant. Always answer as helpfully as possible, "
        "while being safe. Your answers should not include any harmful, unethical, racist, sexist, toxic, dangerous, "
        "or illegal content. Please ensure that your responses are socially unbiased and positive in nature.\n\n"
        "If a question does not make any sense, or is not factually coherent, explain why instead of answering "
        "something not correct. If you don't know the answer to a question, please don't share false information.",
        eosys="\n<</SYS>>\n\n",
        user="[INST] ",
        eoh=" [/INST]",
        assistant=" ",
        generation_prompt="",
        eoa=" </s>",
        separator="<s>",
        stop_words=("</s>",),
        is_system_in_user=True,
    ),
    "llama3": _LLAMA3,
    "llama3_1": _LLAMA3.with_changes(
        {
            "meta_instruction": "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
            "You are a helpful assistant."
        }
    ),
    "mistral": Pieces(
        system="[INST] ",
        eosys="\n\n",
        user="[INST] ",
        eoh=" [/INST]",
        eoa="</s>",
        stop_words=("</s>",),
        is_system_in_user=True,
    ),
    "phi-3": Pieces(
        system="<|system|>\n",
        eosys="<|end|>\n",
        user="<|user|>\n",
        eoh="<|end|>\n",
        assistant="<|assistant|>\n",
        eoa="<|end|>\n",
        stop_words=("<|end|>", "<|endoftext|>", "<|assistant|>"),
    ),
    "internlm2": _CHATML.with_changes(
        {
            "meta_instruction": "You are an AI assistant whose name is InternLM (书生·浦语).\n"
            "- InternLM (书生·浦语) is a conversational language model that is developed by Shanghai AI Laboratory "
            "(上海人工智能实验室). It is designed to be helpful, honest, and harmless.\n"
            "- InternLM (书生·浦语) can understand and communicate fluently in the language chosen by the user such as "
            "English and 中文.",
            "stop_words": ("<|im_end|>", "<|action_end|>"),
        }
    ),
    "internvl2_5": _CHATML.with_changes(
        {
            "meta_instruction": "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、"  # noqa: RUF001
            "清华大学及多家合作单位联合开发的多模态大语言模型。",
        }
    ),
    "gemma": Pieces(
        system="<start_of_turn>user\n",
        eosys="\n\n",
        user="<start_of_turn>user\n",
        eoh="<end_of_turn>\n",
        assistant="<start_of_turn>model\n",
        eoa="<end_of_turn>\n",
        stop_words=("<end_of_turn>",),
        is_system_in_user=True,
    ),
    "deepseek": Pieces(
        eosys="\n\n",
        user="User: ",
        eoh="\n\n",
        assistant="Assistant: ",
        generation_prompt="Assistant:",
        eoa="<｜end▁of▁sentence｜>",  # noqa: RUF001
        stop_words=("<｜end▁of▁sentence｜>",),  # noqa: RUF001
    ),
}

# The first pattern found in the last part of a model's path or hub id wins.
_GUESSES: tuple[tuple[str, str], ...] = (
    (r"internvl-?(2[._]5|3)", "internvl2_5"),
    (r"internlm-?[23]", "internlm2"),
    (r"llava.*v1\.[56]|llava-1\.5", "llava-v1"),
    (r"vicuna", "vicuna"),
    (r"qwen-?2\.5.*(instruct|vl)", "qwen2d5"),
    (r"qwen.*(chat|instruct|vl)", "qwen"),
    (r"llama-?3\.[123].*instruct", "llama3_1"),
    (r"llama-?3.*instruct", "llama3"),
    (r"llama-?2.*chat", "llama2"),
    (r"mi[sx]tral.*instruct", "mistral"),
    (r"phi-?3.*instruct", "phi-3"),
    (r"gemma.*-it", "gemma"),
    (r"deepseek.*chat", "deepseek"),
)

_registered: dict[str, Pieces] = {}


def names() -> list[str]:
    """Return the template names that `ChatTemplateConfig(model_name=…)` accepts, in alphabetical order."""
    return sorted({*_BUILTIN, *_registered})


def register(name: str, template: Pieces) -> None:
    """Add a template under a new name. Raises ConfigError if the name is taken or `template` is not a `Pieces`."""
    if name in _BUILTIN or name in _registered:
        raise ConfigError(f"model_name={name!r}: there is already a chat template with this name")
    if not name or not isinstance(template, Pieces):
        raise ConfigError(f"model_name={name!r}: register() takes seesay.templates.Pieces(…), got {template!r}")
    _registered[name] = template


def find(name: str) -> Pieces | None:
    """Return the template with this name, or None."""
    return _registered.get(name) or _BUILTIN.get(name)


def guess(model_path: str) -> str | None:
    """Guess, from a model's path or hub id, the name of the template that it was trained with."""
    parts = [part for part in re.split(r"[\\/]+", model_path.lower()) if part]
    # In the hub's cache the folder is models--org--name/snapshots/<commit>, so the name is not the last part.
    candidates = [part for part in reversed(parts) if part.startswith("models--")] or parts[-1:]
    for candidate in candidates[:1]:
        for pattern, name in _GUESSES:
            if re.search(pattern, candidate):
                return name
    return None
