"""LLaVA 1.5: a CLIP on pictures padded to a square, as its evaluation asks it."""

from __future__ import annotations

from functools import partial

from golden.cases import STANDARD
from golden.drivers import llava

MODEL = "liuhaotian/llava-v1.5-7b"
TRANSFORMERS = "4.37.2"
FILES = (*llava.FILES, "llava/model/language_model/llava_llama.py")
CASES = STANDARD
_CLASSES = ("LlavaLlamaForCausalLM", "LlavaConfig")
load = partial(llava.load, kind="llava_llama", classes=_CLASSES, conversation="vicuna_v1")
run = llava.run
