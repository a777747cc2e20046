"""Queries about devices: availability, memory, description. The CPU is a device too."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from seesay.device.accelerator import Memory
from seesay.device.cuda import CUDA
from seesay.device.registry import (
    HOST,
    accelerator_of,
    accelerator_of_type,
    choose_accelerator,
    find_lack,
    read_name,
)
from seesay.errors import ConfigError

if TYPE_CHECKING:
    import torch


def has_gpu() -> bool:
    """Whether 'auto' means something else than the CPU."""
    return _has_nvidia_driver() or pick_device("auto").type != "cpu"


def means_nvidia(device_type: str) -> bool:
    """Whether `device_type` means a GPU of NVIDIA, as far as its name says: 'auto' does where there is one."""
    name = device_type.partition(":")[0]
    if name != "auto":
        return name in CUDA.names
    return _has_nvidia_driver() or accelerator_of(pick_device(name)) is CUDA


def _has_nvidia_driver() -> bool:
    """Ask NVIDIA's driver for GPUs, which takes milliseconds; importing torch takes seconds."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() not in ("", "-1"):
        try:
            driver, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
            if driver.nvmlInit_v2() == 0 and driver.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value:
                return True
        except (OSError, AttributeError):  # no such library, or an old one
            pass
    return False


def is_accelerator(device_type: str) -> bool:
    """Whether `device_type` names something else than the CPU, as far as its name says."""
    return has_gpu() if device_type == "auto" else device_type.partition(":")[0] != "cpu"


def pick_device(device_type: str, option: str = "device_type") -> torch.device:
    """Return the device of this machine that `device_type` names: 'auto', or a name of `seesay.device.registry`, also
    with a number behind a colon.

    'auto' is the first type of device that is there, in the order of the registry, else the CPU. Raises `ConfigError`
    that names the `option` for a device that does not exist, and says which package is missing.
    """
    import torch

    if device_type == "auto":
        return torch.device(choose_accelerator()[0].type)
    kind, index = read_name(device_type, option)
    if (reason := find_lack(kind)) is not None:
        raise ConfigError(f"{option}={device_type!r}: {reason}; use 'auto' or 'cpu'")
    if (index or 0) >= (count := kind.count()):
        raise ConfigError(f"{option}={device_type!r}: this machine has only {count} {kind.label}(s)")
    return torch.device(kind.type) if index is None else torch.device(kind.type, index)


def find_device(name: str) -> torch.device:
    """Return the device that PyTorch calls `name`, such as 'npu:0', for a process that has not imported its package."""
    import torch

    if (reason := find_lack(accelerator_of_type(name.partition(":")[0]))) is not None:
        raise ConfigError(f"device {name!r}: {reason}")
    return torch.device(name)


def is_same_device(one: torch.device, other: torch.device) -> bool:
    """Return whether both are the same; 'cuda' is 'cuda:0'."""
    return (one.type, one.index or 0) == (other.type, other.index or 0)


def measure_memory(device: torch.device) -> Memory:
    """Return the free and total memory of `device`. Cached but unused blocks of torch's allocator count as free."""
    return accelerator_of(device).measure_memory(device)


def measure_peak(device: torch.device, run: Callable[[], object]) -> int:
    """Return the peak memory of `run` in bytes, beyond what is allocated before it. Not for the CPU. The meta
    device has none."""
    return accelerator_of(device).measure_peak(device, run)


def has_fp8(device: torch.device) -> bool:
    """Return whether `device` converts FP8 numbers (e4m3). The CPU does."""
    return accelerator_of(device).has_fp8(device)


def describe_kind(device: torch.device) -> str:
    """Return what messages call `device`, such as 'Ascend NPU (npu:0)'."""
    kind = accelerator_of(device)
    return f"{kind.label} ({device})"


def find_capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU; (0, 0) of other devices."""
    return accelerator_of(device).find_capability(device)


def synchronize(device: torch.device) -> None:
    """Wait until all work queued on `device` is done. Does nothing on the CPU."""
    accelerator_of(device).synchronize(device)


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
    accelerator_of(device).release_cached_memory()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that a device or the host ran out of memory."""
    torch = sys.modules.get("torch")  # a process without torch has none of its errors
    return isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError))


def describe_devices() -> tuple[str, list[str], str]:
    """Return torch's version and what it is built for, a description per device of the type that 'auto' means, and why
    it means that."""
    import torch

    chosen, reasons = choose_accelerator()
    build = accelerator_of_type(CUDA.type).describe_build() if chosen is HOST else chosen.describe_build()
    devices = [] if chosen is HOST else [chosen.describe(index) for index in range(chosen.count())]
    why = f"{chosen.names[0]}, the first that is there" if devices else "cpu, as no other device is there"
    return f"{torch.__version__}, {build}", devices, "; ".join([why, *reasons])
