"""MPT, with ALiBi over heads that are no power of two, and clipped queries, keys and values."""

from __future__ import annotations

from pathlib import Path

from golden.cases import TEXT_ONLY
from golden.drivers.causal import Loaded, load_causal, run

__all__ = ["CASES", "FILES", "MODEL", "TRANSFORMERS", "load", "run"]
MODEL = "mosaicml/mpt-7b-chat"
FILES = ("configuration_mpt.py", "modeling_mpt.py", "attention.py", "blocks.py", "ffn.py", "norm.py")
TRANSFORMERS = "4.30.2"
CASES = TEXT_ONLY


def load(code: Path, folder: Path) -> tuple[Loaded, dict[str, tuple[int, ...]]]:
    """Return the published model in float32, and names and shapes of its tensors."""
    classes = {"configuration": ("configuration_mpt", "MPTConfig")}
    return load_causal(code, folder, model=("modeling_mpt", "MPTForCausalLM"), **classes)
