"""DeepSeek-VL 1.3B: one SigLIP."""

from __future__ import annotations

from golden.drivers.deepseek_vl import CASES, FILES, load, run

__all__ = ["CASES", "FILES", "load", "run"]

MODEL = "deepseek-ai/deepseek-vl-1.3b-chat"
TRANSFORMERS = "4.38.2"
