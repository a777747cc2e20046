"""Running a benchmark as its user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_benchmark(name: str, *arguments: str, timeout_s: float = 200) -> list[dict[str, Any]]:
    """The figures that benchmarks/<name> prints."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *arguments],
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(line.removeprefix("RESULT ")) for line in result.stdout.splitlines() if "{" in line]
