"""Figures as a table, JSON, CSV and a plot."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seesay.bench.outcomes import METRICS
from seesay.bench.plotting import Panel, make_bars, save_plot

Record = Mapping[str, Any]

_CSV: Mapping[str, tuple[str, float]] = {
    "batch": ("concurrency", 1),
    "num_prompts": ("num_prompts", 1),
    "RPS": ("request_throughput", 1),
    "RPM": ("request_per_minute", 1),
    "FTL(ave)(s)": ("mean_ttft_ms", 1e-3),
    "FTL(min)(s)": ("min_ttft_ms", 1e-3),
    "FTL(max)(s)": ("max_ttft_ms", 1e-3),
    "50%(s)": ("p50_itl_ms", 1e-3),
    "75%(s)": ("p75_itl_ms", 1e-3),
    "95%(s)": ("p95_itl_ms", 1e-3),
    "99%(s)": ("p99_itl_ms", 1e-3),
    "throughput(out tok/s)": ("output_throughput", 1),
    "throughput(total tok/s)": ("total_token_throughput", 1),
}
"""LMDeploy's columns, from our figures."""
_NAMES = {
    "ttft": "time to the first token, ms",
    "tpot": "time per token after the first, ms",
    "itl": "time between two pieces, ms",
    "e2el": "time to the end, ms",
}


def write_json(path: Path, records: Sequence[Record]) -> None:
    """Write the figures of all records, and their settings."""
    path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def write_csv(path: Path, records: Sequence[Record]) -> None:
    """Write LMDeploy's columns, and behind them all other figures, one record a row."""
    others = list(dict.fromkeys(name for record in records for name in record))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*_CSV, *(name for name in others if name not in _CSV)])
        for record in records:
            own = [_cell(record.get(name), factor) for name, factor in _CSV.values()]
            writer.writerow([*own, *(_cell(record.get(name)) for name in others if name not in _CSV)])


def _cell(value: object, factor: float = 1) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value * factor:.6g}"
    return "-" if value is None else value


def make_table(record: Record) -> str:
    """Return the figures of a record as text."""
    lines = [f"{name:<28}{_cell(value)}" for name, value in record.items() if not _is_time(name)]
    for metric, title in _NAMES.items():
        own = {
            name.removesuffix(f"_{metric}_ms"): value
            for name, value in record.items()
            if name.endswith(f"_{metric}_ms")
        }
        if own:
            lines.append(f"{title}: " + ", ".join(f"{name} {value:.2f}" for name, value in own.items()))
    return "\n".join(lines)


def _is_time(name: str) -> bool:
    return name.endswith(tuple(f"_{metric}_ms" for metric in METRICS))


def plot(path: Path, title: str, records: Sequence[Record]) -> None:
    """Draw the figures. The field `label` of a record names it. Raises ValueError where nothing was measured."""
    panels: list[Panel] = [
        make_bars("requests per second", records, "label", {"request_throughput": "all", "request_goodput": "in time"}),
        make_bars("tokens per second", records, "label", {"output_throughput": "out", "total_token_throughput": "all"}),
    ]
    for metric, name in _NAMES.items():
        series = {f"median_{metric}_ms": "median", f"p99_{metric}_ms": "p99"}
        panels.append(make_bars(name, records, "label", series))
    save_plot(path, title, panels)
