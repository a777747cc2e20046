"""Figures of benchmarks as pictures."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from seesay.bench.plotting import Bars, Lines, add_plot_option, draw_bars, format_value, make_bars, save_plot
from seesay.install_command import install_command

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PLOTTED = (
    "cpu", "floor", "h200", "hostile_bodies", "interference", "ops", "policy", "same_answers", "sampling",
    "serve", "serve_load", "soak", "start", "step_times", "tower",
)  # fmt: skip
RECORDS: list[dict[str, Any]] = [
    {"what": "single", "ttft_ms": 51.4, "tpot_ms": 3.97},
    {"what": "text", "req_per_s": 36.3},
    {"what": "image", "error": "out of memory"},
]


def test_records_without_a_figure_have_no_bar() -> None:
    bars = make_bars("ms", RECORDS, "what", {"ttft_ms": "first token", "tpot_ms": "per token"})
    assert bars.values == {"single": {"first token": 51.4, "per token": 3.97}}


def test_a_plot_is_a_picture_as_high_as_its_panels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    panels: list[Any] = [
        make_bars("ms", RECORDS, "what", {"ttft_ms": "first token"}),
        Bars(title="empty", values={}),
        Lines(title="memory", x_title="requests", series={"host": ([1, 2], [3.0, 4.0]), "gpu": ([1, 2], [5.0, 4.0])}),
    ]
    save_plot(tmp_path / "new" / "a.png", "seesay", panels[:2])
    save_plot(tmp_path / "b.png", "seesay", panels)
    with Image.open(tmp_path / "new" / "a.png") as one, Image.open(tmp_path / "b.png") as two:
        assert one.width == two.width and one.height < two.height
        assert len(one.convert("RGB").getcolors(1 << 20) or ()) > 10
    with pytest.raises(ValueError, match="nothing was measured"):
        save_plot(tmp_path / "c.png", "seesay", panels[1:2])


def test_bars_are_as_long_as_their_values() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axis = figure.subplots()
    draw_bars(axis, Bars(title="", values={"a": {"one": 1.0, "two": 3.0}, "b": {"two": 2.0}}))
    assert [bar.get_width() for bar in axis.patches] == [1.0, 3.0, 2.0]
    assert [text.get_text() for text in axis.texts] == ["1", "3", "2"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a", "b"]


def test_an_axis_begins_at_zero_even_without_any_value() -> None:
    axis = pytest.importorskip("matplotlib.figure").Figure().subplots()
    draw_bars(axis, Bars(title="", values={"a": {"one": 0.0}}))
    assert axis.get_xlim()[0] == 0


def test_values_have_three_digits() -> None:
    assert [format_value(value) for value in (0, 0.1234, 3.97, 51.4, 744, 8192.4)] == [
        "0", "0.123", "3.97", "51.4", "744", "8,192",
    ]  # fmt: skip


def test_a_missing_matplotlib_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    parser = argparse.ArgumentParser()
    add_plot_option(parser)
    assert parser.parse_args([]).plot is None
    with pytest.raises(SystemExit):
        parser.parse_args(["--plot", "a.png"])
    assert install_command("bench") in capsys.readouterr().err


def test_other_suffixes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_plot_option(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--plot", "a.jpg"])
    assert "must end with .png, .svg, .pdf, got 'a.jpg'" in capsys.readouterr().err


@pytest.mark.parametrize("name", PLOTTED)
def test_every_benchmark_takes_a_plot(name: str) -> None:
    source = (BENCHMARKS / f"{name}.py").read_text()
    assert "add_plot_option(parser)" in source and "save_plot(" in source, name
    assert "[--plot FILE.png]" in source.split('"""')[1], f"{name}'s docstring"


def test_a_benchmark_draws_what_it_measured(tmp_path: Path) -> None:
    """The quickest of them, as one runs it."""
    pytest.importorskip("matplotlib")
    plot = tmp_path / "start.png"
    command = [sys.executable, str(BENCHMARKS / "start.py"), "--rounds", "1", "--plot", str(plot)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("RESULT") == 2
    with Image.open(plot) as picture:
        assert picture.width >= 1000
