"""Latency and throughput in forms of quantization, by the workloads of h200.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from h200 import make_figures, measure_each, open_pipeline, warm_up

WORKLOADS = ("single", "text", "image")
COLUMNS = {
    "time per token, ms": ("single", "tpot_ms"),
    "first token, one picture, ms": ("single", "ttft_ms"),
    "text, req/s": ("text", "req_per_s"),
    "image, req/s": ("image", "req_per_s"),
}
"""The figure of a workload in each column of the table."""


def make_forms(awq: str | None) -> dict[str, dict[str, Any]]:
    """Return, by name, the options of `open_pipeline`: those of the engine, and the model where it is another one."""
    forms: dict[str, dict[str, Any]] = {
        "plain": {},
        "quantization-fp8": {"quantization": "fp8"},
        "quantization-int8": {"quantization": "int8"},
        "kv-fp8": {"kv_cache_dtype": "fp8"},
        "kv-int8": {"kv_cache_dtype": "int8"},
        "kv-int4": {"kv_cache_dtype": "int4"},
    }
    return forms if awq is None else forms | {"awq": {"model": awq}}


def make_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the table in Markdown of what `measure_each` returned for all forms. A cell without a figure is empty."""
    found = {(record["form"], record["what"]): record for record in records}
    rows = [["", *COLUMNS], ["---", *["---:"] * len(COLUMNS)]]
    for form in dict.fromkeys(record["form"] for record in records):
        cells = [found.get((form, what), {}).get(figure, "") for what, figure in COLUMNS.values()]
        rows.append([form, *map(str, cells)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def measure_speed(model: str, forms: Mapping[str, Mapping[str, Any]], *, scale: float, side_px: int) -> None:
    """Print a line `RESULT {JSON}` per form and workload, then the table. The forms are measured one after another."""
    records = []
    for name, options in forms.items():
        with open_pipeline(**{"model": model, **options}) as pipe:
            warm_up(pipe, side_px)
            records += measure_each(make_figures(pipe, scale, side_px), WORKLOADS, {"workload": "speed", "form": name})
    print(f"\n{make_table(records)}")
