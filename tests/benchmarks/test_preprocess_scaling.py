"""The benchmark of decoding at the same time: small, in this process and in others."""

from __future__ import annotations

import json

import preprocess_scaling
import pytest


def test_pages_are_those_of_a_scanner() -> None:
    page = preprocess_scaling.make_page(1)
    assert page != preprocess_scaling.make_page(2) and page == preprocess_scaling.make_page(1)
    assert 500_000 < len(page) < 5_000_000, "text and noise: neither blank nor random"


@pytest.mark.slow
def test_each_kind_prints_a_line_per_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    preprocess_scaling.main(["--workers", "1", "2", "--seconds", "0.2", "--pages", "1"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["kind"], line["workers"]) for line in lines] == [
        (kind, workers) for kind in ("processes", "threads") for workers in (1, 2)
    ]
    for line in lines:
        assert line["pages_per_s"] > 0 and line["mb_per_worker"] > 0 and line["cpu_ms_per_page"] > 0
        assert line["times_one"] == 1 or line["workers"] > 1
