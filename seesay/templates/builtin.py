"""The built-in and registered templates by name. `guesses.py` says which models they belong to."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

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

_DEEPSEEK = Pieces(
    eosys="\n\n",
    user="User: ",
    eoh="\n\n",
    assistant="Assistant: ",
    generation_prompt="Assistant:",
    eoa="<｜end▁of▁sentence｜>",
    stop_words=("<｜end▁of▁sentence｜>",),
)

_XCOMPOSER = Pieces(
    system="[UNUSED_TOKEN_146]system\n",
    meta_instruction="You are an AI assistant whose name is InternLM-XComposer (浦语·灵笔).\n"
    "- InternLM-XComposer (浦语·灵笔) is a multi-modality conversational language model that is developed by Shanghai "
    "AI Laboratory (上海人工智能实验室). It is designed to be helpful, honest, and harmless.\n"
    "- InternLM-XComposer (浦语·灵笔) can understand and communicate fluently in the language chosen by the user such "
    "as English and 中文.\n"
    "- InternLM-XComposer (浦语·灵笔) is capable of comprehending and articulating responses effectively based on the "
    "provided image.",
    eosys="[UNUSED_TOKEN_145]\n",
    user="[UNUSED_TOKEN_146]user\n",
    eoh="[UNUSED_TOKEN_145]\n",
    assistant="[UNUSED_TOKEN_146]assistant\n",
    eoa="[UNUSED_TOKEN_145]",
    separator="\n",
    after_media="",
    stop_words=("[UNUSED_TOKEN_145]",),
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

_LLAMA3_1 = _LLAMA3.with_changes(
    {
        "system": "<|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
        "meta_instruction": "",
    }
)

_MISTRAL = Pieces(
    system="[INST] ",
    eosys="\n\n",
    user="[INST] ",
    eoh=" [/INST]",
    eoa="</s>",
    stop_words=("</s>",),
    is_system_in_user=True,
)

_NUMBERED_MEDIA = {"media_wording": "Image {number}:{media}"}

_COGVLM = Pieces(
    eosys="\n",
    user="Question: ",
    eoh=" ",
    assistant="Answer: ",
    generation_prompt="Answer:",
    separator="\n",
    puts_media_first=True,
    stop_words=("</s>",),
)

_LLAMA2 = Pieces(
    system="[INST] <<SYS>>\n",
    eosys="\n<</SYS>>\n\n",
    user="[INST] ",
    eoh=" [/INST]",
    assistant=" ",
    generation_prompt="",
    eoa=" </s>",
    separator="<s>",
    stop_words=("</s>",),
    is_system_in_user=True,
)

_PHI3 = Pieces(
    system="<|system|>\n",
    eosys="<|end|>\n",
    user="<|user|>\n",
    eoh="<|end|>\n",
    assistant="<|assistant|>\n",
    eoa="<|end|>\n",
    stop_words=("<|end|>", "<|endoftext|>", "<|assistant|>"),
)

_GEMMA = Pieces(
    system="<start_of_turn>user\n",
    eosys="\n\n",
    user="<start_of_turn>user\n",
    eoh="<end_of_turn>\n",
    assistant="<start_of_turn>model\n",
    eoa="<end_of_turn>\n",
    stop_words=("<end_of_turn>",),
    is_system_in_user=True,
)

_GLM = Pieces(
    start="[gMASK]<sop>",
    system="<|system|>\n",
    user="<|user|>\n",
    assistant="<|assistant|>\n",
    generation_prompt="<|assistant|>",
    tool="<|observation|>\n",
    after_media="",
    stop_words=("<|user|>", "<|observation|>", "<|endoftext|>"),
)

_QWEN = _CHATML.with_changes({"meta_instruction": "You are a helpful assistant."})

_LLAVA_INSTRUCTION = (
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions."
)
_LLAVA_NEXT_INSTRUCTION = (
    "You are a helpful language and vision assistant. You are able to understand the visual content that the user "
    "provides, and assist the user with a variety of tasks using natural language."
)
_INTERNVL2_INSTRUCTION = (
    "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, 是一个有用无害的人工智能助手。"
)

_WITHOUT_BREAKS = {"eosys": "<|im_end|>", "eoh": "<|im_end|>", "separator": ""}

_BUILTIN: dict[str, Pieces] = {
    "base": Pieces(is_completion=True),
    "chatml": _CHATML,
    "qwen": _QWEN,
    "qwen-vl": _QWEN.with_changes({"after_media": ""}),
    "qwen2d5": _CHATML.with_changes(
        {"meta_instruction": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}
    ),
    "qwen2-vl": _QWEN.with_changes({"after_media": ""}),
    "qwen3": _CHATML,
    "qwen3-vl": _CHATML.with_changes({"after_media": ""}),
    "baichuan": Pieces(user="<reserved_102>", assistant="<reserved_103>", stop_words=("</s>",)),
    "baichuan2": Pieces(user="<reserved_106>", assistant="<reserved_107>", stop_words=("</s>",)),
    "chatglm": Pieces(
        user="[Round {round}]\n\n问：",
        eoh="\n\n",
        assistant="答：",
        eoa="\n\n",
        stop_words=("</s>",),
    ),
    "chatglm3": Pieces(
        start="[gMASK]sop",
        system="<|system|>\n ",
        user="<|user|>\n ",
        assistant="<|assistant|>\n ",
        generation_prompt="<|assistant|>",
        tool="<|observation|>\n ",
        stop_words=("<|user|>", "<|observation|>", "</s>"),
    ),
    "glm4": _GLM,
    "yi": _CHATML,
    "yi-vl": Pieces(
        meta_instruction="This is a chat between an inquisitive human and an AI assistant. Assume the role of the AI "
        "assistant. Read all the images carefully, and respond to the human's questions with informative, helpful, "
        "detailed and polite answers. "
        "这是一个好奇的人类和一个人工智能助手之间的对话。假设你扮演这个AI助手的角色。"
        "仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、详细的和礼貌的回答。",
        eosys="\n\n",
        user="### Human: ",
        eoh="\n",
        assistant="### Assistant: ",
        generation_prompt="### Assistant:",
        eoa="\n",
        stop_words=("###",),
    ),
    "minicpmv-2d6": _QWEN,
    "vicuna": _VICUNA,
    "mini-gemini-vicuna": _VICUNA.with_changes(_NUMBERED_MEDIA),
    "mini-gemini-gemma": _GEMMA.with_changes({**_NUMBERED_MEDIA, "eoa": "<end_of_turn>\n<eos>"}),
    "mini-gemini-mistral": _LLAMA2.with_changes(_NUMBERED_MEDIA),
    "vicuna-v0": Pieces(
        meta_instruction=_LLAVA_INSTRUCTION,
        eosys="###",
        user="Human: ",
        eoh="###",
        assistant="Assistant: ",
        generation_prompt="Assistant:",
        eoa="###",
        stop_words=("###",),
    ),
    "llava-v1": _VICUNA.with_changes({"meta_instruction": _LLAVA_INSTRUCTION}),
    "llava-hf": _VICUNA.with_changes({"meta_instruction": None, "eoa": " "}),
    "llava-mistral": _LLAMA2.with_changes({"separator": ""}),
    "llava-next-mistral": _LLAMA2.with_changes(
        {"system": "<<SYS>>\n", "eoa": "</s>", "separator": " ", "is_system_in_user": False}
    ),
    "llava-chatml": _CHATML.with_changes({**_WITHOUT_BREAKS, "meta_instruction": "Answer the questions."}),
    "llava-llama-2": _LLAMA2.with_changes({"meta_instruction": _LLAVA_NEXT_INSTRUCTION}),
    "llava-llama-3": _LLAMA3.with_changes({"meta_instruction": _LLAVA_NEXT_INSTRUCTION}),
    "llava-qwen": _QWEN,
    "llava-onevision": _CHATML.with_changes(
        {
            **_WITHOUT_BREAKS,
            "system": "<|im_start|>system \n",
            "user": "<|im_start|>user \n",
            "user_before_media": "<|im_start|>user ",
            "assistant": "<|im_start|>assistant \n",
            "generation_prompt": "<|im_start|>assistant\n",
        }
    ),
    "llama2": _LLAMA2,
    "llama3": _LLAMA3,
    "llama3_1": _LLAMA3_1,
    "llama3_2": _LLAMA3_1,
    "mistral": _MISTRAL,
    "mixtral": _MISTRAL,
    "mistral-v3": _MISTRAL.with_changes({"eoh": "[/INST]", "assistant": " ", "generation_prompt": ""}),
    "mistral-v7": _MISTRAL.with_changes(
        {
            "system": "[SYSTEM_PROMPT]",
            "eosys": "[/SYSTEM_PROMPT]",
            "user": "[INST]",
            "eoh": "[/INST]",
            "is_system_in_user": False,
            "after_media": "",
        }
    ),
    "pixtral": _MISTRAL.with_changes({"system": "[INST]", "user": "[INST]", "eoh": "[/INST]", "after_media": ""}),
    "phi-3": _PHI3,
    "phi-4-mini": _PHI3.with_changes(
        {
            "system": "<|system|>",
            "eosys": "<|end|>",
            "user": "<|user|>",
            "eoh": "<|end|>",
            "assistant": "<|assistant|>",
            "eoa": "<|end|>",
        }
    ),
    "phi-4": _CHATML.with_changes(
        {
            **_WITHOUT_BREAKS,
            "system": "<|im_start|>system<|im_sep|>",
            "user": "<|im_start|>user<|im_sep|>",
            "assistant": "<|im_start|>assistant<|im_sep|>",
        }
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
    "internlm-xcomposer2": _XCOMPOSER,
    "internlm-xcomposer2d5": _XCOMPOSER.with_changes(
        {"opens_with_media": True, "media_wording": "Image{number} {media}; "}
    ),
    "internvl-zh": Pieces(
        meta_instruction="",
        eosys=" ",
        user="<human>: ",
        eoh=" ",
        assistant="<bot>: ",
        generation_prompt="<bot>:",
        eoa="</s>",
        stop_words=("</s>",),
    ),
    "internvl2-internlm2": _CHATML.with_changes(
        {**_WITHOUT_BREAKS, "meta_instruction": _INTERNVL2_INSTRUCTION, "stop_words": ("<|im_end|>",)}
    ),
    "internvl2-phi3": _PHI3.with_changes(
        {
            "eosys": "<|end|>",
            "eoh": "<|end|>",
            "eoa": "<|end|>",
            "meta_instruction": _INTERNVL2_INSTRUCTION,
            "stop_words": ("<|end|>",),
        }
    ),
    "internvl2_5": _CHATML.with_changes(
        {
            "meta_instruction": "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、"
            "清华大学及多家合作单位联合开发的多模态大语言模型。",
            "stop_words": ("<|im_end|>",),
        }
    ),
    "gemma": _GEMMA,
    "gemma3": _GEMMA.with_changes({"after_media": ""}),
    "smolvlm": Pieces(
        start="<|im_start|>",
        system="System: ",
        eosys="<end_of_utterance>\n",
        user="User: ",
        user_before_media="User:",
        eoh="<end_of_utterance>\n",
        assistant="Assistant: ",
        generation_prompt="Assistant:",
        eoa="<end_of_utterance>\n",
        after_media="",
        stop_words=("<end_of_utterance>",),
    ),
    "molmo": Pieces(
        start="<|endoftext|>",
        system=" ",
        user=" User: ",
        assistant=" Assistant: ",
        generation_prompt=" Assistant:",
        eoa="<|endoftext|>",
        puts_media_first=True,
        stop_words=("<|endoftext|>",),
    ),
    "cogvlm": _COGVLM,
    "cogvlm2": _COGVLM.with_changes({"stop_words": ("<|end_of_text|>",)}),
    "ovis2": _CHATML.with_changes({"meta_instruction": "You are a helpful assistant."}),
    "paligemma": Pieces(
        eosys="\n",
        assistant="\n",
        generation_prompt="",
        separator="\n",
        gathers_media=True,
        stop_words=("<eos>",),
    ),
    "deepseek": _DEEPSEEK,
    "deepseek-vl": _DEEPSEEK.with_changes(
        {
            "meta_instruction": "You are a helpful language and vision assistant. You are able to understand "
            "the visual content that the user provides, and assist the user with a variety of tasks using natural "
            "language.",
            "after_media": "",
        }
    ),
    "deepseek-ocr": Pieces(
        start="<｜begin▁of▁sentence｜>", eoa="<｜end▁of▁sentence｜>", stop_words=("<｜end▁of▁sentence｜>",)
    ),
    "deepseek-vl2": Pieces(
        start="<｜begin▁of▁sentence｜>",
        user="<|User|>: ",
        eoh="\n\n",
        assistant="<|Assistant|>:",
        eoa="<｜end▁of▁sentence｜>",
        stop_words=("<｜end▁of▁sentence｜>",),
    ),
}

Match = Callable[[str], str | None]
"""From a model's path or hub id to the name of its template, or None."""

_FILES = Path(__file__).parent / "files"
"""Templates that are Jinja, by name: NAME.jinja."""

_registered: dict[str, Pieces] = {}
_matches: dict[str, Match] = {}


def names() -> list[str]:
    """Return the template names that `ChatTemplateConfig(model_name=…)` accepts, in alphabetical order."""
    return sorted({*_BUILTIN, *_registered, *(file.stem for file in _FILES.glob("*.jinja"))})


def register(name: str, template: Pieces, *, match: Match | None = None, replace: bool = False) -> None:
    """Add a template under a new name.

    match: says which models without a template of their own get a template, and which one.
    replace: the name may be taken.
    Raises ConfigError if the name is taken or `template` is not a `Pieces`.
    """
    if not replace and name in names():
        raise ConfigError(f"model_name={name!r}: there is already a chat template with this name")
    if not name or not isinstance(template, Pieces):
        raise ConfigError(f"model_name={name!r}: register() takes seesay.templates.Pieces(…), got {template!r}")
    _registered[name] = template
    if match is not None:
        _matches[name] = match


def find(name: str) -> Pieces | None:
    """Return the pieces of the template with this name, or None: it is unknown, or Jinja (`find_file`)."""
    return _registered.get(name) or _BUILTIN.get(name)


def find_file(name: str) -> Path | None:
    """Return the file of the template with this name if it is Jinja and nothing was registered under the name, or
    None."""
    is_known = name not in _registered and name in {file.stem for file in _FILES.glob("*.jinja")}
    return _FILES / f"{name}.jinja" if is_known else None


def find_registered(name: str) -> Pieces | None:
    """Return the template with this name if `register` added it, or None."""
    return _registered.get(name)


def match_registered(model_path: str) -> str | None:
    """Return the template that the `match` of a registered one names for this model, or None."""
    for match in _matches.values():
        name = match(model_path)
        if isinstance(name, str) and find(name) is not None:
            return name
    return None


def suggest(name: str) -> str:
    """Return the part of an error message that names the templates nearest to an unknown `name`, or else all."""
    nearest = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.5)
    if nearest:
        return f"did you mean {' or '.join(map(repr, nearest))}? `seesay list` prints all names"
    return f"known names: {', '.join(names())}"
