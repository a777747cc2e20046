"""InternLM-XComposer2-VL (arXiv 2401.16420). Its `chat` takes a path, or the pixels of several pictures.

`plora.py` is build_mlp.py of 2.5: the copy of build_mlp.py has another PLoRA than the published one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from golden.cases import ALPHA_DROPPED, PICTURE_IN_SECOND_TURN, STANDARD, Case
from golden.drivers import xcomposer
from golden.drivers.xcomposer import TRANSFORMERS as TRANSFORMERS
from golden.record import Record

MODEL = "internlm/internlm-xcomposer2-vl-7b"
MODULES = (
    "configuration_internlm_xcomposer2",
    "plora",
    "build_mlp",
    "modeling_internlm2",
    "modeling_internlm_xcomposer2",
)
FILES = tuple(f"{name}.py" for name in MODULES)
CASES = (*STANDARD, ALPHA_DROPPED, PICTURE_IN_SECOND_TURN)


def load(code: Path, folder: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return the model with the sizes of `folder`, and the shapes of its tensors."""
    return xcomposer.load(code, folder, MODULES, xcomposer.square_sizes(folder))


def run(model: Any, case: Case) -> Record:
    """Return what the published code makes of a case."""
    return xcomposer.run(model, case, queries=[xcomposer.mark(turn) for turn in case.turns], stacks=True)
