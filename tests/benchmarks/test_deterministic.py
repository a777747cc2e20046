"""The benchmark of the deterministic mode compares bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import deterministic
import pytest


@pytest.mark.slow
def test_bits_differ_in_the_plain_mode_alone(run_benchmark: Callable[..., list[dict[str, Any]]]) -> None:
    options = ("--requests", "6", "--arrangements", "3", "--scale", "0.002", "--compare-plain")
    figures = run_benchmark(deterministic, *options)
    bits = {each["mode"]: each["differing_bits"] for each in figures if each["what"] == "bits"}
    assert bits["deterministic"] == 0 < bits["plain"]
    assert {"req_per_s_ratio", "single_tpot_ms_ratio"} < set(figures[-1])
