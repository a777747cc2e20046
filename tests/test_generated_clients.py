"""Clients that others' generators make of the published documents: `python -m tools.generated_clients`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROGRAMS = ("npm", "node", "javac", "apt-get", "dpkg")
RUN_S = 1500


def is_online() -> bool:
    """Whether npm's registry answers."""
    return subprocess.run(["npm", "ping"], capture_output=True, timeout=120, check=False).returncode == 0


def test_generated_clients_compile_and_ask(tmp_path: Path) -> None:
    """In Python, TypeScript, Java and Go; the answers are those of a plain request."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if not is_online():
        pytest.skip("generators come from npm, PyPI and Debian, which need a network")
    done = subprocess.run(
        [sys.executable, "-m", "tools.generated_clients", tmp_path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    asked = [line for line in done.stdout.splitlines() if line.startswith("asked by")]
    assert asked == [f"asked by {name}: ok" for name in ("Python", "TypeScript", "Java", "Go")]
