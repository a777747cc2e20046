"""Starting, timed once on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import start

RunBenchmark = Callable[..., list[dict[str, Any]]]


def test_the_figures_are_printed(run_benchmark: RunBenchmark) -> None:
    figures = {line.pop("what"): line for line in run_benchmark(start, "--rounds", "1", "--side-px", "56")}
    assert list(figures) == ["import", "help", "model", "first_text", "first_image"]
    assert figures["import"]["seconds"] > 0 and not figures["import"]["imports_torch"]
    assert figures["help"]["seconds"] > 0 and figures["model"]["seconds"] > 0
    assert all(figures[name]["second_ms"] > 0 for name in ("first_text", "first_image"))
