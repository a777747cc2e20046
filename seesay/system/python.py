"""The command and the environment that start another Python with a module of ours."""

from __future__ import annotations

import multiprocessing.spawn
import os
import sys
from pathlib import Path


def python_command(module: str) -> tuple[list[str], dict[str, str]]:
    """Return the command `python -m MODULE` and its environment, in which Python finds the package that we are, and all
    that we have."""
    executable = os.fsdecode(multiprocessing.spawn.get_executable() or sys.executable)
    root = str(Path(__file__).resolve().parents[2])
    paths = [str(Path(path).absolute()) for path in sys.path]
    path = os.pathsep.join(paths if root in paths else [root, *paths])
    # -P: do not import from the current folder, unless the caller's path has it.
    return [executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": path}
