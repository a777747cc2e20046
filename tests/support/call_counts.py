"""Calls of functions in this thread, for tests of how work grows with its input. The same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_calls(work: Callable[[], object]) -> int:
    """Return how many functions `work` calls, in Python and in C, and how many values its generators yield."""
    num_calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal num_calls
        del frame, argument
        num_calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return num_calls
