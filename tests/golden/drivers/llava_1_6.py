"""LLaVA 1.6 with Mistral: a CLIP on tiles, and lines without the padding around the picture."""

from __future__ import annotations

from functools import partial

from golden.cases import LLAVA_ROUNDING, STANDARD
from golden.drivers import llava

MODEL = "liuhaotian/llava-v1.6-mistral-7b"
TRANSFORMERS = "4.37.2"
FILES = (*llava.FILES, "llava/model/language_model/llava_mistral.py")
CASES = (*STANDARD, LLAVA_ROUNDING)
_CLASSES = ("LlavaMistralForCausalLM", "LlavaMistralConfig")
load = partial(llava.load, kind="llava_mistral", classes=_CLASSES, conversation="mistral_instruct")
run = llava.run
