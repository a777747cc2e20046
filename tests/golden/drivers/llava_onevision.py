"""LLaVA-OneVision: a SigLIP on tiles, lines that are shrunk, frames of half the rows, and several pictures as its
tutorial shows them: each padded to a square."""

from __future__ import annotations

from functools import partial

from golden.cases import ONEVISION_ROUNDING, STANDARD, VIDEO
from golden.drivers import llava

MODEL = "lmms-lab/llava-onevision-qwen2-7b-ov"
TRANSFORMERS = "4.37.2"
FILES = (
    *llava.FILES,
    "llava/model/language_model/llava_qwen.py",
    "llava/model/multimodal_encoder/siglip_encoder.py",
)
CASES = (*STANDARD, ONEVISION_ROUNDING, VIDEO)
_CLASSES = ("LlavaQwenForCausalLM", "LlavaQwenConfig")
load = partial(llava.load, kind="llava_qwen", classes=_CLASSES, conversation="qwen_1_5")
run = partial(llava.run, several="pad")
