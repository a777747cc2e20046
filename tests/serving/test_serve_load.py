"""The load benchmark, for a few seconds: nothing is lost, and nothing is held when the clients are gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_short_load_loses_nothing() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "serve_load.py"), "--seconds", "3", "--clients", "8"]
    command += ["--pictures", "6", "--warm-up", "0", "--max-growth-mb", "10000"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        command, check=False, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=800
    )
    assert result.returncode == 0, result.stdout + result.stderr
    *latencies, summary = map(json.loads, result.stdout.splitlines())
    assert [line["what"] for line in latencies] == ["time_to_first_token_s", "time_per_output_token_s", "end_to_end_s"]
    assert all(0 < line["p50"] <= line["p99"] for line in latencies)
    assert summary["finished"] > 0 and summary["left"] > 0
    assert summary["lost"] == {} and summary["kv_blocks_used_after"] == 0
