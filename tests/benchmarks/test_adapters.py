"""The benchmark of adapters writes some that the engine takes, and uses them in turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters


def test_figures_without_and_with_adapters(
    run_benchmark: Callable[..., list[dict[str, Any]]], tiny_checkpoint: Callable[[str], Path]
) -> None:
    options = ("--numbers", "0,2", "--rank", "4", "--scale", "0.005")
    records = run_benchmark(adapters, *options, model=str(tiny_checkpoint("qwen2_5_vl")))
    assert [record["adapters"] for record in records] == [0, 2]
    assert all(record["req_per_s"] > 0 and record["single_tpot_ms"] > 0 for record in records)
    assert "share" not in records[0] and records[1]["share"] > 0 and records[1]["cpu_share"] > 0


def test_first_tokens_of_adapters_in_host_memory(
    run_benchmark: Callable[..., list[dict[str, Any]]], tiny_checkpoint: Callable[[str], Path]
) -> None:
    options = ("--numbers", "2", "--rank", "4", "--max-adapters", "1", "--only-cold")
    (record,) = run_benchmark(adapters, *options, model=str(tiny_checkpoint("qwen2_5_vl")))
    assert record["cold_ms"] > 0 and record["warm_ms"] > 0 and "req_per_s" not in record
