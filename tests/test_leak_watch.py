from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WATCH = """
import pytest
from leak_watch import LeakWatch

WATCH = LeakWatch()

@pytest.fixture(autouse=True)
def collect_leaks():
    yield
    WATCH.collect()
"""
TESTS = """
import gc
import socket

class Holder:
    pass

def test_that_leaks():
    holder = Holder()
    holder.socket, holder.itself = socket.socket(), holder

def test_without_fault():
    gc.collect()
"""


@pytest.mark.parametrize("is_watched", [True, False])
def test_the_test_that_drops_an_open_socket_is_blamed(tmp_path: Path, is_watched: bool) -> None:
    """Without the watch it is the one during which garbage happens to be collected."""
    (tmp_path / "conftest.py").write_text(WATCH if is_watched else "")
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-Werror", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    found = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent / "support")}, check=False,
    )  # fmt: skip
    assert found.returncode == 1 and "ResourceWarning: unclosed <socket" in found.stdout, found.stdout + found.stderr
    assert ("test_two.py::test_that_leaks" in found.stdout) == is_watched
    assert ("test_two.py::test_without_fault" in found.stdout) != is_watched
