from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HOLDER = """
import gc
import socket
import sys

import pytest

class Holder:
    def __init__(self):
        self.socket, self.itself = socket.socket(), self
"""
TWO = """
def test_that_leaks():
    Holder()

def test_without_fault():
    gc.collect()
"""
ONE_THAT_AGES = """
def test_that_leaks_something_old():
    holder = Holder()
    others = [[] for _ in range(2_000_000)]
    assert any(each is holder for each in gc.get_objects(2))

def test_that_keeps_something():
    sys.kept = [Holder(), Holder()]

def test_that_drops_something_kept():
    others = [[] for _ in range(2_000_000)]
    sys.kept.pop()
"""
FIXTURE = """
@pytest.fixture(scope="module")
def holder():
    yield Holder()

def test_first(holder):
    pass

def test_that_unfreezes():
    gc.collect()
    gc.unfreeze()
    socket.socket().close()

def test_last():
    assert gc.get_freeze_count()
"""
ANOTHER = """
def test_that_drops_what_another_file_kept():
    del sys.kept
"""


def _find_blamed(folder: Path, *, is_watched: bool = True, **files: str) -> list[str]:
    """Return the tests of these files that fail, here as part of the whole suite where they are watched."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(HOLDER + text)
    command = [sys.executable, "-m", "pytest", "-q", "-Werror", "-p", "no:cacheprovider", "-p", "no:asyncio", "."]
    command += ["-p", "conftest"] if is_watched else []
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS / 'support'}"}
    found = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert found.returncode == 1, found.stdout + found.stderr
    blamed = re.findall(r"^(?:ERROR|FAILED) (\S+)", found.stdout, re.MULTILINE)
    assert found.stdout.count("ResourceWarning: unclosed <socket") >= len(blamed), found.stdout
    return blamed


@pytest.mark.parametrize("is_watched", [True, False])
def test_the_test_that_drops_an_open_socket_is_blamed(tmp_path: Path, is_watched: bool) -> None:
    """Without the watch it is the one during which garbage happens to be collected."""
    blamed = _find_blamed(tmp_path, is_watched=is_watched, two=TWO)
    assert blamed == [f"test_two.py::test_{'that_leaks' if is_watched else 'without_fault'}"]


def test_old_objects_and_those_of_fixtures_and_other_files_are_found(tmp_path: Path) -> None:
    assert _find_blamed(tmp_path, a=ONE_THAT_AGES, b=FIXTURE, c=ANOTHER) == [
        "test_a.py::test_that_leaks_something_old", "test_a.py::test_that_drops_something_kept",
        "test_b.py::test_last", "test_c.py::test_that_drops_what_another_file_kept",
    ]  # fmt: skip
