"""InternVL 3.5 with Qwen3 and InternViT-300M."""

from __future__ import annotations

from golden.drivers.internvl_chat import CASES, list_files, load, run

__all__ = ["CASES", "load", "run"]

MODEL = "OpenGVLab/InternVL3_5-8B"
TRANSFORMERS = "4.55.4"
FILES = list_files("internvl/model/internvl_chat/conversation.py")
