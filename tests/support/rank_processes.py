"""The processes of an engine, as tests see and end them."""

from __future__ import annotations

from pathlib import Path

from seesay.engine.process.ranks.executor import MODULE


def find_followers(pid: int) -> list[int]:
    """Return the ids of the processes that follow the engine process `pid`, those that have ended left out."""
    return find_children(pid, MODULE)


def find_children(pid: int, module: str) -> list[int]:
    """Return the ids of the children of a process that run a module, those that have ended left out."""
    children = {
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    }
    return sorted(child for child in children if module in _read_command(child))


def _read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_over(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
