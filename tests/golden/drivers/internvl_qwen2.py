"""InternVL 2.5 with Qwen2.5 and InternViT-300M."""

from __future__ import annotations

from golden.drivers.internvl_chat import CASES, list_files, load, run

__all__ = ["CASES", "load", "run"]

MODEL = "OpenGVLab/InternVL2_5-4B"
TRANSFORMERS = "4.37.2"
FILES = list_files(
    "internvl/conversation.py",
)
