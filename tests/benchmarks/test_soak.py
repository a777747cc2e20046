"""The soak, for a moment on the CPU; which pictures it shows, and how it tells growth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import soak
from soak import find_faults, growth, is_warm, make_shapes

from seesay.values import EngineStats

RunBenchmark = Callable[..., list[dict[str, Any]]]


@pytest.mark.slow
def test_a_short_soak_loses_nothing(run_benchmark: RunBenchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "is_warm", lambda stats, _limit: stats.num_cached_kv_blocks > 0)
    options = ["--requests", "60", "--clients", "4", "--max-side-px", "140"]
    options += ["--max-growth-mb", "100000", "--kv-blocks", "256"]
    figures = run_benchmark(soak, *options)
    [host] = [line for line in figures if line["what"] == "soak" and line["memory"] == "host"]
    at_end, reset = [line for line in figures if line["what"] == "account" and line["process"] == "host"]
    summary = figures[-1]
    assert host["memory"] == "host" and 0 < host["first_mb"] < 100_000
    assert at_end["resident_mb"] > 0 and reset["malloc_used_mb"] <= at_end["malloc_used_mb"]
    assert summary["warm_up"] <= 30
    assert summary["answered"] == summary["requests"] == 60
    assert summary["seen_before"] > 0 and summary["encoded"] == 60 - summary["seen_before"]
    assert summary["faults"] == []


def test_what_is_lost_or_grows_is_a_fault() -> None:
    assert not find_faults(num_missing=0, num_blocks=0, slopes_mb=[-3.0, 20.0], max_mb=20.0, is_late=False)
    faults = find_faults(num_missing=2, num_blocks=1, slopes_mb=[1.0, 20.1], max_mb=20.0, is_late=False)
    assert [fault.split()[0] for fault in faults] == ["2", "1", "memory"]
    [late] = find_faults(num_missing=0, num_blocks=0, slopes_mb=[], max_mb=20.0, is_late=True)
    assert "were not full after half" in late


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, True),
        ({"total_embedding_evictions": 0}, False),
        ({"feature_bytes": 800}, False),
        ({"num_cached_kv_blocks": 80}, False),
    ],
)
def test_the_warm_up_ends_when_all_caches_are_full(found: dict[str, int], expected: bool) -> None:
    full = EngineStats(total_embedding_evictions=1, feature_bytes=950, num_cached_kv_blocks=95, num_kv_blocks=100)
    stats: Any = replace(full, **found)  # type: ignore[arg-type]
    assert is_warm(stats, 1000) is expected


def test_pictures_differ_in_size_and_some_come_again() -> None:
    shapes = list(make_shapes(2000, 1024, 1))
    assert shapes == list(make_shapes(2000, 1024, 1)) and shapes != list(make_shapes(2000, 1024, 2))
    assert 300 < len(shapes) - len(set(shapes)) < 500
    longer = sorted(max(width, height) for width, height, _ in shapes)
    assert longer[0] < 80 and longer[len(longer) // 2] < 400 and longer[-1] > 1000
    assert any(width < height for width, height, _ in shapes) and any(width > height for width, height, _ in shapes)


def test_growth_is_a_slope_per_thousand_requests() -> None:
    assert growth([1000, 2000, 3000], [50.0, 52.0, 54.0]) == {
        "first_mb": 50.0,
        "last_mb": 54.0,
        "growth_mb_per_1000": 2.0,
    }
    assert abs(growth([1, 2, 3, 4], [7.0, 8.0, 7.0, 8.0])["growth_mb_per_1000"]) < 500
