"""Runs a function of a test file in processes, one for each rank, that are forks and so need no imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from forked_python import forked

_LIMIT_S = 300


def run_forked_ranks(function: Callable[..., None], size: int, *arguments: str) -> None:
    """Call `function(rank, *arguments)` in each of `size` processes, with the rank as a text. Fails if one fails."""
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; from {function.__module__} import {function.__name__}; "
        f"{function.__name__}(*sys.argv[1:])"
    )
    with forked():
        ranks = [subprocess.Popen([sys.executable, "-c", program, str(rank), *arguments]) for rank in range(size)]
    assert [rank.wait(_LIMIT_S) for rank in ranks] == [0] * size
