"""Judges answers as the package's own evaluation does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seesay.demo.checking import is_right
from seesay.demo.scenes import make_example


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return the score of one answer."""
    return {"right": float(is_right(make_example(doc["task"], doc["seed"]), results[0]))}
