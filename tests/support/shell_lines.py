"""The commands of a shell script, and what its `seesay` commands mean to the command line's own parser."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from seesay import cli


def check_shell(script: str) -> None:
    """Fail for what ShellCheck finds."""
    command = shutil.which("shellcheck")
    if command is None:
        pytest.skip("shellcheck is not here")
    done = subprocess.run([command, "--shell", "bash", "-"], check=False, input=script, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\nin\n{script}"


def find_seesay(script: str) -> list[list[str]]:
    """Return the words behind `seesay` of each command that runs it, behind variables, `exec`, `srun` or `&&`, too."""
    joined = re.sub(r"\\\n\s*", " ", script)
    found = []
    for line in joined.splitlines():
        words = shlex.split(line, comments=True)
        for index, word in enumerate(words):
            is_first = index == 0 or words[index - 1] in ("exec", "srun", "&&") or "=" in words[index - 1]
            if is_first and word.rpartition("/")[2] == "seesay":
                found.append([word for word in words[index + 1 :] if word != "&"])
    return found


def parse_seesay(words: Iterable[str]) -> argparse.Namespace:
    """Return the options of a command; one that does not exist fails the test."""
    return cli.make_parser().parse_args([*words])


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
