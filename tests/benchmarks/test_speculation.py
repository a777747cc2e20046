"""The benchmark of speculation counts steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import speculation


def test_a_text_that_repeats_itself_takes_fewer_steps(run_benchmark: Callable[..., list[dict[str, Any]]]) -> None:
    ngram, none = run_benchmark(speculation, "--scale", "0.002")
    assert (ngram["method"], none["method"]) == ("ngram", "none")
    assert ngram["steps_per_token"] < 0.5 < none["steps_per_token"] == 1.0
    assert ngram["accepted_share"] > 0.7 and none["accepted_share"] == 0.0
