"""Draws what a benchmark measured: bars for figures with names, lines for what changes over time. PNG, SVG or PDF.

matplotlib is imported when something is drawn; `add_plot_option` says before anything is measured when it is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seesay.install_command import install_command

SUFFIXES = (".png", ".svg", ".pdf")
COLORS = ("#4f46e5", "#d97706", "#0d9488", "#a1a1aa", "#be185d")
_ROW_INCHES, _PANEL_INCHES, _WIDTH_INCHES = 0.34, 0.9, 8.0


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Horizontal bars: a group for each name, in it a bar for each series that has a value there."""

    title: str
    values: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Values over time, or over anything else that grows; with `is_scattered` points that nothing connects."""

    title: str
    x_title: str
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    is_scattered: bool = False


Panel = Bars | Lines


def add_plot_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """`--plot FILE`: None, or a path that can be drawn to."""
    parser.add_argument("--plot", type=_plot_file, metavar="FILE.png", help="draw the figures, too (needs matplotlib)")


def make_bars(title: str, records: Iterable[Mapping[str, Any]], label: str, series: Mapping[str, str]) -> Bars:
    """Bars of the records that have one of the fields; `series` says which name each field gets."""
    values: dict[str, dict[str, float]] = {}
    for record in records:
        own = {name: float(record[key]) for key, name in series.items() if isinstance(record.get(key), (int, float))}
        if own:
            values.setdefault(str(record[label]), {}).update(own)
    return Bars(title=title, values=values)


def save_plot(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw the panels that have values below each other. Raises ValueError when none has."""
    shown = [panel for panel in panels if (panel.values if isinstance(panel, Bars) else panel.series)]
    if not shown:
        raise ValueError("nothing was measured that can be drawn")
    from matplotlib.figure import Figure

    heights = [_PANEL_INCHES + _ROW_INCHES * _num_rows(panel) for panel in shown]
    figure = Figure(figsize=(_WIDTH_INCHES, sum(heights) + 0.4), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    axes = figure.subplots(len(shown), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, panel in zip(axes, shown):
        axis.set_title(panel.title, loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        if isinstance(panel, Bars):
            draw_bars(axis, panel)
        else:
            _draw_lines(axis, panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def draw_bars(axis: Any, panel: Bars, colors: Sequence[str] = COLORS) -> None:
    """The bars from top to bottom, each with its value; a legend where there are several series."""
    series = list(dict.fromkeys(name for own in panel.values.values() for name in own))
    thickness = 0.8 / len(series)
    for index, name in enumerate(series):
        values = {row: own[name] for row, own in enumerate(panel.values.values()) if name in own}
        places = [row - 0.4 + thickness * (index + 0.5) for row in values]
        bars = axis.barh(places, [*values.values()], thickness * 0.92, color=colors[index], label=name)
        axis.bar_label(bars, labels=[*map(format_value, values.values())], padding=3, fontsize=8)
    axis.set_yticks(range(len(panel.values)), list(panel.values), fontsize=8)
    axis.invert_yaxis()
    if not any(any(own.values()) for own in panel.values.values()):
        axis.set_xlim(0, 1)
    axis.margins(x=0.12)
    if len(series) > 1:
        axis.legend(fontsize=8, frameon=False)


def format_value(value: float) -> str:
    """Three digits that count: 0.123, 1.23, 12.3, 1,234."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _draw_lines(axis: Any, panel: Lines) -> None:
    for (name, (x, y)), color in zip(panel.series.items(), COLORS):
        style = {"marker": ".", "linestyle": "none", "markersize": 3} if panel.is_scattered else {"linewidth": 1.5}
        axis.plot(x, y, color=color, label=name, **style)
    axis.set_xlabel(panel.x_title, fontsize=8)
    axis.set_ylim(bottom=0)
    if len(panel.series) > 1:
        axis.legend(fontsize=8, frameon=False)


def _num_rows(panel: Panel) -> int:
    if isinstance(panel, Lines):
        return 6
    return max(sum(len(own) for own in panel.values.values()), 1)


def _plot_file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"must end with {', '.join(SUFFIXES)}, got {text!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(f"needs matplotlib: {install_command('bench')}, or pip install matplotlib")
    return path
