"""The benchmark of EAGLE-3 heads forces their acceptance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import eagle


def test_a_given_share_of_proposals_is_accepted(run_benchmark: Callable[..., list[dict[str, Any]]]) -> None:
    plain, sure = run_benchmark(
        eagle, "--batches", "2", "--drafts", "3", "--tokens", "24", "--rate", "1.0", "--rounds", "1"
    )
    assert plain["tokens_per_step"] <= 1.0 and plain["accepted_share"] == 0.0
    assert sure["accepted_share"] == 1.0 and sure["tokens_per_step"] > 2.0 and sure["ratio"] > 0
