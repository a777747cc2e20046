"""The benchmark of a frontend answers all of its requests, and tells apart what it measures."""

from __future__ import annotations

import json

import frontend
import pytest


def test_every_kind_is_answered_and_costs_something(capsys: pytest.CaptureFixture[str]) -> None:
    frontend.main(["--requests", "24", "--rounds", "1", "--step-ms", "1"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["what"] for line in lines] == list(frontend.KINDS)
    assert all(line["front_us"] > 0 and line["req_per_s"] > 0 for line in lines)
