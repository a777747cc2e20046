"""DeepSeek-VL 7B: a SigLIP and a SAM."""

from __future__ import annotations

from golden.drivers.deepseek_vl import CASES, FILES, load, run

__all__ = ["CASES", "FILES", "load", "run"]

MODEL = "deepseek-ai/deepseek-vl-7b-chat"
TRANSFORMERS = "4.38.2"
