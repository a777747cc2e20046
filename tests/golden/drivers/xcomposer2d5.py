"""InternLM-XComposer2.5 (arXiv 2407.03320), asked as its page says: with the system prompt, and one picture without a
place in the text, several as "Image1 <ImageHere>; ". It fails on pictures with alpha.

The code is that of InternLM-XComposer2.5-OmniLive's base, a 2.5 with one more projector, which is left out.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from golden.cases import ALPHA, PICTURE_IN_SECOND_TURN, STANDARD, TWO_PICTURES_IN_TURNS, TWO_WIDE_PICTURES, Case
from golden.drivers import xcomposer
from golden.drivers.xcomposer import MARKER
from golden.drivers.xcomposer import TRANSFORMERS as TRANSFORMERS
from golden.record import Record

MODEL = "internlm/internlm-xcomposer2d5-7b"
MODULES = (
    "configuration_internlm_xcomposer2",
    "build_mlp",
    "ixc_utils",
    "modeling_internlm2",
    "modeling_internlm_xcomposer2",
)
FILES = tuple(f"{name}.py" for name in MODULES)
_ALL = (*STANDARD, PICTURE_IN_SECOND_TURN, TWO_WIDE_PICTURES, TWO_PICTURES_IN_TURNS)
CASES = tuple(case for case in _ALL if case != ALPHA)


def load(code: Path, folder: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return the model with the sizes of `folder`, and the shapes of its tensors."""
    return xcomposer.load(code, folder, MODULES, xcomposer.tiled_sizes(folder, tile=560, grid=40))


def run(model: Any, case: Case) -> Record:
    """Return what the published code makes of a case."""
    numbers, queries = count(1), []
    for turn in case.turns:
        named = "".join(f"Image{next(numbers)} {MARKER}; " for _ in turn.pictures)
        queries.append((named if len(case.pictures) > 1 else "") + turn.question)
    return xcomposer.run(model, case, queries=queries, use_meta=True)
