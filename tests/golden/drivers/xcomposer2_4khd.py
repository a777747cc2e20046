"""InternLM-XComposer2-4KHD (arXiv 2404.06512). Its `chat` takes one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from golden.cases import ALPHA_DROPPED, PICTURE_IN_SECOND_TURN, STANDARD, Case
from golden.drivers import xcomposer
from golden.drivers.xcomposer import TRANSFORMERS as TRANSFORMERS
from golden.record import Record

MODEL = "internlm/internlm-xcomposer2-4khd-7b"
MODULES = (
    "configuration_internlm_xcomposer2",
    "build_mlp",
    "ixc_utils",
    "modeling_internlm2",
    "modeling_internlm_xcomposer2",
)
FILES = tuple(f"{name}.py" for name in MODULES)
CASES = tuple(case for case in (*STANDARD, ALPHA_DROPPED, PICTURE_IN_SECOND_TURN) if len(case.pictures) < 2)


def load(code: Path, folder: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return the model with the sizes of `folder`, and the shapes of its tensors."""
    return xcomposer.load(code, folder, MODULES, xcomposer.tiled_sizes(folder, tile=336, grid=24))


def run(model: Any, case: Case) -> Record:
    """Return what the published code makes of a case."""
    return xcomposer.run(model, case, queries=[xcomposer.mark(turn) for turn in case.turns])
