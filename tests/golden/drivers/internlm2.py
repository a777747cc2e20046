"""InternLM2, with dynamic rotary scaling beyond its trained length."""

from __future__ import annotations

from pathlib import Path

from golden.cases import LONG_TEXTS, TEXT_ONLY
from golden.drivers.causal import Loaded, load_causal, run

__all__ = ["CASES", "FILES", "MODEL", "TRANSFORMERS", "load", "run"]
MODEL = "internlm/internlm2-chat-7b"
FILES = ("configuration_internlm2.py", "modeling_internlm2.py")
TRANSFORMERS = "4.37.2"
CASES = (*TEXT_ONLY, *LONG_TEXTS)


def load(code: Path, folder: Path) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors."""
    classes = {"configuration": ("configuration_internlm2", "InternLM2Config")}
    return load_causal(code, folder, model=("modeling_internlm2", "InternLM2ForCausalLM"), **classes)
