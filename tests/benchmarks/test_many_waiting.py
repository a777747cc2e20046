"""The benchmark of waiting requests plans steps, ends its answers, and prints what was asked."""

from __future__ import annotations

import json

import many_waiting
import pytest


def test_plans_and_gaps_are_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_waiting, "NUM_LONG", 20)
    monkeypatch.setattr(many_waiting, "LONG_TOKENS", 2000)
    monkeypatch.setattr(many_waiting, "ANSWER_TOKENS", 20)
    many_waiting.main(["--waiting", "200", "--pictures", "30"])
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["plan_median_ms"] <= figures["plan_longest_ms"]
    assert figures["longest_gap_30_ms"] > 0 and figures["most_computed_30_ms"] > 0
