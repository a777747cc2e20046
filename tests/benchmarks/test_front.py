"""The benchmark of a front answers all of its requests, and tells apart what it measures."""

from __future__ import annotations

import json
import sys

import front
import pytest


def test_every_kind_is_answered_and_costs_something(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["front.py", "--requests", "24", "--rounds", "1", "--step-ms", "1"])
    front.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["what"] for line in lines] == list(front.KINDS)
    assert all(line["front_us"] > 0 and line["req_per_s"] > 0 for line in lines)
