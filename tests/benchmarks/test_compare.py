"""Figures of two versions are compared with the spread of their runs."""

from __future__ import annotations

import json
from pathlib import Path

import compare
import pytest


def write(path: Path, *runs: tuple[float, float]) -> Path:
    lines = ["INFO not a figure"]
    for text, first in runs:
        lines.append("RESULT " + json.dumps({"engine": "seesay", "what": "text", "req_per_s": text, "is_x": True}))
        lines.append("RESULT " + json.dumps({"engine": "seesay", "what": "single", "ms": {"first": first}}))
    path.write_text("\n".join(lines))
    return path


def test_what_differs_by_more_than_the_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old", (39.0, 50.0), (39.4, 51.0), (39.2, 52.0), (39.1, 50.5), (39.3, 51.5))
    new = write(tmp_path / "new", (41.0, 51.9), (41.2, 52.8), (41.1, 52.0), (40.9, 51.0), (41.3, 53.0))
    compare.main([str(old), str(new)])
    [changed, last] = capsys.readouterr().out.splitlines()
    assert changed == "* seesay text True req_per_s: 39.2 -> 41.1 (1.048; spreads 0.4, 0.4)"
    assert last == "1 of 2 figures changed by more than the spread"
    compare.main([str(old), str(new), "--all"])
    assert "  seesay single ms.first: 51 -> 52 (1.020; spreads 2, 2)" in capsys.readouterr().out


def test_few_runs_and_other_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "one", (39.0, 0.0))
    compare.main([str(one), str(one), "--all"])
    out = capsys.readouterr().out
    assert "single ms.first: 0 -> 0 (-; spreads 0, 0)" in out
    assert out.endswith("0 of 2 figures changed by more than the spread; with 1 of 5 runs, spreads say little\n")
    (tmp_path / "none").write_text("nothing\n")
    with pytest.raises(SystemExit):
        compare.main([str(one), str(tmp_path / "none")])
    assert "have no RESULT line of the same figure" in capsys.readouterr().err
