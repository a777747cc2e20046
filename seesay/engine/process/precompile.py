"""Compiles a model's kernels in a process of its own while its weights are loaded.

Triton compiles a kernel when it is first launched, one after another. On a machine that never ran the model that takes
longer than everything else of a start. The process (`precompile_child.py`) finds out which kernels a start launches,
and compiles them in threads into Triton's own cache on the disk, where the start then finds them.

Nothing depends on it: where it fails, the start compiles the rest itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from seesay.checkpoint.model_path import CONFIG_PATTERNS
from seesay.config import EngineConfig
from seesay.config.plain import as_plain
from seesay.device.backends import has_triton
from seesay.device.query import means_nvidia
from seesay.errors import ConfigError
from seesay.system.python import python_command

logger = logging.getLogger("seesay")

_MODULE = "seesay.engine.process.precompile_child"
_MAX_WAIT_S = 120.0
"""Longest wait for the process after the weights are loaded. Kernels that are missing then are compiled one by one."""
_END_S = 10.0
_KERNELS = Path(__file__).resolve().parents[2] / "kernels"
"""The folder that has all Triton kernels, some of them in folders of its own."""
_GPUS = Path("/proc/driver/nvidia/gpus")


class Precompile:
    """A process that compiles, and the note that a start leaves beside Triton's cache: with it the next start of the
    same model needs no such process. Used by one thread."""

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        """Start the process for the model in `folder`, unless its kernels are in the cache, or it is not for a GPU."""
        self._process: subprocess.Popen[bytes] | None = None
        self._note: Path | None = None
        if not _has_kernels(config):
            return
        try:
            # The folder is what download_dir and revision lead to.
            engine = as_plain("backend_config", replace(config, download_dir=None, revision=None))
            self._note = _cache_folder() / f"seesay-{_make_key(folder, engine)}"
            if not self._note.exists():
                self._start({"folder": str(folder), "engine": engine})
        except (OSError, TypeError, ValueError, ConfigError) as error:
            logger.info("kernels are not compiled ahead: %s", error)

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def wait(self) -> None:
        """Wait until the process has ended, which is when all is compiled."""
        if self._process is None:
            return
        started_s = time.monotonic()
        report = _read_report(self._process)
        self.close()
        if "error" in report:
            text = "kernels could not all be compiled ahead, the rest is compiled one by one: %s"
            logger.warning(text, report["error"])
        else:
            text = "%d kernels were compiled ahead, %.1f s after the start of their process; waited %.1f s for it"
            logger.info(text, report["num_kernels"], report["seconds"], time.monotonic() - started_s)

    def finish(self) -> None:
        """Note that all kernels of this start are in the cache now."""
        self.close()
        if self._note is not None:
            with suppress(OSError):
                self._note.touch()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _start(self, orders: Mapping[str, Any]) -> None:
        command, environment = python_command(_MODULE)
        line = json.dumps(orders).encode() + b"\n"
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()  # it stays open: the process ends when it is closed


def _read_report(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return what the process prints at its end; "error" says what went wrong."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(_MAX_WAIT_S):
            return {"error": f"it took longer than {_MAX_WAIT_S:.0f} s"}
    try:
        report: dict[str, Any] = json.loads(process.stdout.readline())
    except ValueError:
        return {"error": f"{_MODULE} died"}
    return report


def _has_kernels(config: EngineConfig) -> bool:
    is_compiled = has_triton() and os.environ.get("TRITON_INTERPRET") != "1"
    return is_compiled and means_nvidia(config.device_type)


def _cache_folder() -> Path:
    """Where Triton keeps what it compiled; importing Triton to ask for it would take as long as all else here."""
    if folder := os.environ.get("TRITON_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def _make_key(folder: Path, engine: Mapping[str, Any]) -> str:
    """Return the hash of everything that determines which kernels a start needs."""
    sources = [*sorted(_KERNELS.rglob("*.py")), *(path for path in map(Path, engine["plugins"]) if path.is_file())]
    facts = {
        "versions": [_find_version(name) for name in ("seesay", "torch", "triton")],
        "sources": [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources],
        "gpus": list(_list_gpus()),
        "engine": dict(engine),
        "config": [file.read_text(errors="replace") for file in _list_configs(folder)],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _list_configs(folder: Path) -> list[Path]:
    """Return the files that say which model is in a folder."""
    return [folder / name for name in CONFIG_PATTERNS if (folder / name).is_file()]


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _list_gpus() -> Iterator[str]:
    """The model names of the GPUs, as the driver lists them; none where it does not."""
    for path in sorted(_GPUS.glob("*/information")):
        with suppress(OSError):
            yield from (line for line in path.read_text().splitlines() if line.startswith("Model"))
