"""InternVL 2 with Phi-3 and InternViT-300M."""

from __future__ import annotations

from golden.drivers.internvl_chat import CASES, list_files, load, run

__all__ = ["CASES", "load", "run"]

MODEL = "OpenGVLab/InternVL2-4B"
TRANSFORMERS = "4.37.2"
FILES = list_files(
    "internvl/conversation.py", "internvl/model/phi3/configuration_phi3.py", "internvl/model/phi3/modeling_phi3.py"
)
