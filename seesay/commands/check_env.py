"""`seesay check_env`: a block to paste into a bug report.

It has versions and hardware only: no environment variables, host names, user names or paths.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from seesay.commands.command import Command
from seesay.device.gpu_links import describe_peers, describe_topology
from seesay.version import __version__

_REQUIRED = (
    "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy", "pillow", "jinja2", "blake3",
    "msgspec", "pyzmq", "regex",
)  # fmt: skip
_EXTRAS = {
    "serve": (
        "aiohttp",
        "yarl",
        "fastapi",
        "uvicorn",
        "websockets",
        "httptools",
        "pydantic",
        "httpx",
        "prometheus_client",
        "python-multipart",
    ),
    "ui": ("gradio",),
    "video": ("av",),
    "timm": ("timm",),
    "grammar": ("llguidance",),
    "documents": ("pypdfium2",),
    "otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
}
_CHOSEN_BY = ("triton", "openai", "anthropic")
_LABEL_WIDTH = 14


def _run(_: argparse.Namespace) -> int:
    for label, value in _report():
        sys.stdout.write(f"{label + ':':<{_LABEL_WIDTH}}{value}\n")
        sys.stdout.flush()
    return 0


def _report() -> Iterator[tuple[str, str]]:
    yield "seesay", __version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}, {_libc()}"
    yield "cpu", f"{_cpu_name()}, {_num_cpus()} cores"
    yield "memory", _memory()
    yield from _gpus()
    yield "packages", ", ".join(f"{name} {_version(name) or 'missing'}" for name in _REQUIRED)
    for extra, names in _EXTRAS.items():
        missing = [f"no {name}" for name in names if not _version(name)]
        yield f"[{extra}]", ", ".join([*_list_installed(names), *missing])
    yield "others", ", ".join(_list_installed(_CHOSEN_BY)) or "none"


def _list_installed(names: Iterable[str]) -> list[str]:
    return [f"{name} {version}" for name in names if (version := _version(name))]


def _gpus() -> Iterator[tuple[str, str]]:
    try:
        from seesay.device.query import describe_devices
    except ImportError as error:
        yield "gpu", f"unknown, as torch cannot be imported: {' '.join(str(error).split())[:200]}"
        return
    build, devices, why = describe_devices()
    yield "torch build", build
    yield "device", why
    yield "gpu", "; ".join(devices) or "no GPU that torch can use"
    if (peers := describe_peers()) is not None:
        yield "gpu peers", f"reach each other's memory: {peers}"
    if (topology := describe_topology()) is not None:
        yield "gpu links", topology
    if (driver := _driver()) is not None:
        yield "gpu driver", driver


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _libc() -> str:
    name, version = platform.libc_ver()
    return f"{name} {version}" if name else "unknown libc"


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    fields = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)
    try:
        total, free = (int(fields[key].split()[0]) / 2**20 for key in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return "unknown"
    return f"{total:.1f} GiB, {free:.1f} GiB free"


def _driver() -> str | None:
    """Return the version of the NVIDIA kernel driver."""
    for word in _read("/proc/driver/nvidia/version").split():
        if word[:1].isdigit() and "." in word:
            return word
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


COMMAND = Command(
    name="check_env",
    summary="print versions and hardware, to paste into a bug report",
    run=_run,
    examples="  seesay check_env\n",
)
