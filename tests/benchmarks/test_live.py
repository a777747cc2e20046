"""The benchmark of live video asks about frames that are there."""

from __future__ import annotations

import json

import live
import pytest


def test_each_question_has_its_newest_frame(capsys: pytest.CaptureFixture[str]) -> None:
    live.main(
        ["seesay-demo", "--seconds", "4", "--rate", "8", "--side-px", "84", "--max-frames", "12", "--device", "cpu"]
    )
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["questions"] == figures["with_the_newest"] == 4
    assert 0 < figures["median_ms"] <= figures["p90_ms"] <= figures["longest_ms"]
    assert live.EVERY <= figures["most_frames"] <= 12
