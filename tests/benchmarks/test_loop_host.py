"""The benchmark of the engine loop answers all of its requests and prints what a row costs."""

from __future__ import annotations

import json

import loop_host
import pytest


def test_each_row_costs_something(capsys: pytest.CaptureFixture[str]) -> None:
    loop_host.main(["--rows", "16", "--steps", "24"])
    figures = json.loads(capsys.readouterr().out)
    assert (figures["rows"], figures["steps"]) == (16, 24)
    assert figures["least_us"] > 0 and figures["median_us"] > 0
