"""InternVL 2 with InternLM2 and InternViT-300M."""

from __future__ import annotations

from golden.drivers.internvl_chat import CASES, list_files, load, run

__all__ = ["CASES", "load", "run"]

MODEL = "OpenGVLab/InternVL2-2B"
TRANSFORMERS = "4.37.2"
FILES = list_files(
    "internvl/conversation.py",
    "internvl/model/internlm2/configuration_internlm2.py",
    "internvl/model/internlm2/modeling_internlm2.py",
)
