"""Kernels in Triton's interpreter, where there is no GPU: the test files that need it run once more in a process of
their own, as a process either compiles its kernels or interprets them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def list_files() -> list[Path]:
    """The files that say what runs in the interpreter."""
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path.name != Path(__file__).name]
    return [path for path in files if "from triton_cases import" in path.read_text(encoding="utf-8")]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None or IS_INTERPRETED, reason="needs Triton")
@pytest.mark.timeout(1200)
def test_files_pass_when_kernels_are_interpreted(pytestconfig: pytest.Config) -> None:
    files = list_files()
    assert len(files) >= 6
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", pytestconfig.option.markexpr]
    done = subprocess.run(
        [*command, *map(str, files)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
