"""Queries about devices: availability, memory, description. The CPU is a device too."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seesay.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a device in bytes."""

    free_bytes: int
    total_bytes: int


def has_gpu() -> bool:
    """Whether 'auto' means a GPU. Asks the driver first, which takes milliseconds; importing torch takes seconds."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() in ("", "-1"):
        return False
    try:
        driver, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
        if driver.nvmlInit_v2() == 0 and driver.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
            return count.value > 0
    except (OSError, AttributeError):  # no such library, or an old one
        pass
    return pick_device("auto").type == "cuda"


def pick_device(device_type: str, option: str = "device_type") -> torch.device:
    """Return the device of this machine that `device_type` ('auto', 'cuda', 'cuda:N' or 'cpu') names.

    'auto' is CUDA if there is a GPU, else the CPU. Raises `ConfigError` that names the `option` for a GPU that does not
    exist.
    """
    import torch

    if device_type == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = _read_device(device_type, option)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{option}={device_type!r}: torch finds no CUDA GPU; use 'auto' or 'cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{option}={device_type!r}: this machine has only {torch.cuda.device_count()} GPU(s)")
    return device


def _read_device(device_type: str, option: str) -> torch.device:
    import torch

    try:
        device = torch.device(device_type)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
        raise ConfigError(f"{option} must be 'auto', 'cuda', 'cuda:N' or 'cpu', got {device_type!r}")
    return device


def is_same_device(one: torch.device, other: torch.device) -> bool:
    """Return whether both are the same; 'cuda' is 'cuda:0'."""
    return (one.type, one.index or 0) == (other.type, other.index or 0)


def measure_memory(device: torch.device) -> Memory:
    """Return the free and total memory of `device`. Cached but unused blocks of torch's allocator count as free. The
    meta device takes whatever it is given."""
    import torch

    if device.type == "meta":
        return Memory(free_bytes=1 << 40, total_bytes=1 << 40)

    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Memory(free_bytes=free + idle, total_bytes=total)
    return _measure_host_memory()


def measure_peak(device: torch.device, run: Callable[[], object]) -> int:
    """Return the peak memory of `run` in bytes, beyond what is allocated before it. Not for the CPU. The meta
    device has none."""
    import torch

    if device.type == "meta":
        run()
        return 0
    assert device.type == "cuda"
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _measure_host_memory() -> Memory:
    """Return the smaller of host memory (/proc/meminfo) and the cgroup limit; 8 GiB if neither can be read."""
    from pathlib import Path

    free = total = 8 << 30
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        free, total = (int(fields[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        if limit.isdigit():
            total, free = min(total, int(limit)), min(free, max(0, int(limit) - int(used)))
    except (OSError, KeyError, ValueError):
        pass
    return Memory(free_bytes=free, total_bytes=total)


def has_fp8(device: torch.device) -> bool:
    """Return whether `device` converts FP8 numbers (e4m3). The CPU does."""
    import torch

    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9)


def synchronize(device: torch.device) -> None:
    """Wait until all work queued on `device` is done. Does nothing on the CPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def cpu_threads(num_threads: int) -> Iterator[None]:
    """Make torch use `num_threads` CPU threads inside the block, for the calling thread only."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def release_cached_memory(device: torch.device) -> None:
    """Return the cached but unused memory of torch's allocator to the device."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that a device or the host ran out of memory."""
    torch = sys.modules.get("torch")  # a process without torch has none of its errors
    return isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.cuda.OutOfMemoryError))


def describe_gpus() -> tuple[str, list[str]]:
    """Return torch's version and CUDA version, and one description per GPU that torch can use."""
    import torch

    build = f"{torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA")
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        gpus.append(f"{properties.name} ({memory:.0f} GiB, compute capability {properties.major}.{properties.minor})")
    return build, gpus
