"""Draws the README's speed table, for light and for dark backgrounds, from the figures in speed.json.

    python docs/pictures/draw_speed.py          # writes speed.svg and speed-dark.svg
    python docs/pictures/draw_speed.py --table  # prints the table as Markdown

Needs matplotlib (`pip install '.[bench]'`). The pictures say which figures they were drawn from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DATA_FILE = FOLDER / "speed.json"
PICTURES = {
    "speed.svg": {"text": "#18181b", "quiet": "#52525b", "own": "#4f46e5", "others": "#c4c4cc"},
    "speed-dark.svg": {"text": "#f4f4f5", "quiet": "#a1a1aa", "own": "#818cf8", "others": "#52525b"},
}

READERS_FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"


def load() -> dict[str, Any]:
    """The setup, the engines, and the workloads with their figures in the order of the engines, as printed."""
    data: dict[str, Any] = json.loads(DATA_FILE.read_text(encoding="utf-8"))
    return data


def make_table(data: Mapping[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [f"| | {' | '.join(data['engines'])} |", "|---" * (len(data["engines"]) + 1) + "|"]
    lines += [f"| {workload['name']} | {' | '.join(workload['figures'])} |" for workload in data["workloads"]]
    return "\n".join(lines) + "\n"


def make_digest(data: Mapping[str, Any]) -> str:
    """Names the figures that a picture shows."""
    return "figures " + hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def draw(path: Path, data: Mapping[str, Any], colors: Mapping[str, str]) -> None:
    """One panel for each workload, in it one bar for each engine."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    style = {"svg.hashsalt": "seesay", "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context({**style, "text.color": colors["text"]}):
        figure = Figure(figsize=(9.6, 5.2), layout=ConstrainedLayoutEngine(hspace=0.08, wspace=0.06))
        for axis, workload in zip(figure.subplots(3, 2).flat, data["workloads"], strict=True):
            draw_panel(axis, workload, data["engines"], colors)
        metadata = {"Date": None, "Description": make_digest(data)}
        figure.savefig(path, transparent=True, metadata=metadata)
    # Text stays text, in the reader's own font; the widths are those of a wide one.
    path.write_text(path.read_text(encoding="utf-8").replace("'DejaVu Sans'", READERS_FONT), encoding="utf-8")


def draw_panel(axis: Any, workload: Mapping[str, Any], engines: list[str], colors: Mapping[str, str]) -> None:
    values = [float(figure) for figure in workload["figures"]]
    own, *others = colors["own"], *[colors["others"]] * (len(engines) - 1)
    bars = axis.barh(range(len(engines)), values, 0.74, color=[own, *others])
    axis.bar_label(bars, labels=workload["figures"], padding=4, fontsize=9, color=colors["text"])
    names = [engine.replace(" Turbo", "\nTurbo") for engine in engines]
    axis.set_yticks(range(len(engines)), names, fontsize=8.5)
    axis.tick_params(axis="y", length=0, colors=colors["text"])
    axis.set_xticks([])
    axis.invert_yaxis()
    axis.set_xlim(0, max(values) * 1.16)
    axis.spines[:].set_visible(False)
    better = "less is better" if workload["is_less_better"] else "more is better"
    about = f"{workload['about']} · {better}"
    axis.set_title(workload["title"], loc="left", fontsize=10.5, fontweight="bold", color=colors["text"], pad=17)
    axis.text(0, 1.05, about, transform=axis.transAxes, fontsize=8, color=colors["quiet"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the table instead")
    args = parser.parse_args()
    data = load()
    if args.table:
        print(make_table(data), end="")
        return
    for name, colors in PICTURES.items():
        draw(FOLDER / name, data, colors)


if __name__ == "__main__":
    main()
