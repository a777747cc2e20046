"""Shows a scene's pictures, and judges answers as the package's own evaluation does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from seesay.demo.checking import is_right
from seesay.demo.scenes import make_example


def doc_to_visual(doc: Mapping[str, Any]) -> list[Image.Image]:
    """Return the pictures of a question."""
    return [Image.open(path).convert("RGB") for path in doc["pictures"]]


def doc_to_text(doc: Mapping[str, Any], _options: object = None) -> str:
    """Return the question."""
    return str(doc["question"])


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return the score of one answer."""
    return {"right": float(is_right(make_example(doc["task"], doc["seed"]), results[0]))}
