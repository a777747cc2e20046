"""Decide whether a tokenizer from a checkpoint may be used by this process: a hostile one ends the process that loads
it, or one that tokenizes with it, by the memory that it takes."""

from __future__ import annotations

import json
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from seesay.errors import CheckpointError

MEMORY_BYTES = 4 << 30
CPU_S = 60
WALL_S = 300.0
_MAX_GROWTH = 64
"""Most characters that the normalizer, or the decoder, may make of one."""
_PARTS = ("normalizers", "pretokenizers", "decoders")
_ENVIRONMENT = ("LD_LIBRARY_PATH", "LANG", "LC_ALL")


def try_tokenizer(file: Path, *, origin: Path | None = None) -> None:
    """Load and use a tokenizer.json in a process with limits. Raises `CheckpointError` where that process exceeds them
    or dies. An error that it ends with is left to those who load the file. origin: what the file was made from, for
    messages."""
    shown = origin or file
    settings = {
        "file": str(file.absolute()),
        "sys_path": [str(Path(path).absolute()) for path in sys.path],
        "memory_bytes": MEMORY_BYTES,
        "cpu_s": CPU_S,
    }
    executable = os.fsdecode(multiprocessing.spawn.get_executable() or sys.executable)
    program = str(Path(__file__).with_name("trial_worker.py"))
    try:
        status = subprocess.run(
            [executable, "-I", "-S", program, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            timeout=WALL_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        status = -signal.SIGXCPU
    except OSError as error:
        raise CheckpointError(f"{shown}: the process that tries it cannot be started: {error}") from None
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        raise CheckpointError(f"{shown}: to load it and to tokenize a short text takes more than {CPU_S} s")
    if status < 0:
        raise CheckpointError(
            f"{shown}: to load it and to tokenize a short text takes more than {MEMORY_BYTES >> 30} GiB, or crashes "
            f"tokenizers (signal {-status})"
        )


def check_growth(backend: Mapping[str, object]) -> None:
    """Raise `CheckpointError` for a serialized tokenizer whose replacements make a text many times as long."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if (growth := _find_growth(backend.get(name))) > _MAX_GROWTH:
            raise CheckpointError(
                f"the tokenizer's {name} makes up to {growth:.3g} characters of one; at most {_MAX_GROWTH} are allowed"
            )


def _find_growth(step: object) -> float:
    """Return how many times as long a text may become by the replacements of a step and of its parts."""
    if not isinstance(step, Mapping):
        return 1.0
    growth = 1.0
    if step.get("type") == "Replace" and (content := str(step.get("content", ""))):
        pattern = step.get("pattern")
        text = pattern.get("String") if isinstance(pattern, Mapping) else None
        # A regular expression may match at every place, with nothing.
        growth = max(1.0, len(content) / len(text)) if isinstance(text, str) and text else 1.0 + len(content)
    for name in _PARTS:
        for part in step.get(name) or ():
            growth *= _find_growth(part)
    return growth
