"""Texts and pictures beside each other, for a moment on the CPU; and what is made of their moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import interference
import pytest
from interference import UNCOUNTED_TOKENS, Marks, summarize

RunBenchmark = Callable[..., list[dict[str, Any]]]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["no", "yes"])
def test_the_figures_are_printed(run_benchmark: RunBenchmark, form: str) -> None:
    """Without a lead by the clock, as on a machine so slow that no text has begun by then: the pictures wait."""
    options = ("--scale", "0.25", "--side-px", "56", "--lead-s", "0", "--engine-process", form)
    [figures] = run_benchmark(interference, *options)
    assert figures["engine_process"] is (form == "yes")
    assert figures["what"] == "interference" and figures["engine"] == "seesay"
    assert figures["longest_gap_ms"] > 0 and figures["longest_gap_before_ms"] > 0
    assert figures["pace_share"] > 0 and figures["image_ttft_ms_median"] > 0


@pytest.mark.parametrize(("first_images_at", "images_done_at"), [(0.0, 5.0), (5.0, 6.0)])
def test_texts_that_are_not_beside_the_pictures_say_so(first_images_at: float, images_done_at: float) -> None:
    texts = [[0.1 * index for index in range(UNCOUNTED_TOKENS + 5)]]
    marks = Marks(texts=texts, first_images_at=first_images_at, images_done_at=images_done_at, first_token_s=[0.1])
    with pytest.raises(RuntimeError, match="--lead-s"):
        summarize(marks)


def test_gaps_count_before_and_beside_the_pictures() -> None:
    uncounted = [0.05 * index for index in range(UNCOUNTED_TOKENS)]
    before = [1.0, 1.01, 1.03]
    beside = [1.07, 1.09, 1.19, 3.0]  # the first gap spans the first picture, the last one ends after the last picture
    after = [9.0]
    marks = Marks(
        texts=[[*uncounted, *before, *beside, *after]],
        first_images_at=1.05,
        images_done_at=2.0,
        first_token_s=[0.3, 0.1, 0.2],
    )
    assert summarize(marks) == {
        "longest_gap_ms": 1810.0,
        "longest_gap_before_ms": 20.0,
        "pace_share": round(0.015 / ((0.04 + 0.02 + 0.1 + 1.81) / 4), 4),
        "image_ttft_ms_median": 200.0,
    }
