"""InternVL-Chat-V1-2 with Llama and InternViT-6B: RMSNorm, normalized queries and keys, the first pixel shuffle. Its
`layer_norm_eps` is larger than published, so that another one shows.
"""

from __future__ import annotations

from golden.drivers.internvl_chat import CASES, list_files, load, run

__all__ = ["CASES", "load", "run"]

MODEL = "OpenGVLab/InternVL-Chat-V1-2"
TRANSFORMERS = "4.37.2"
FILES = list_files(
    "internvl/conversation.py",
)
