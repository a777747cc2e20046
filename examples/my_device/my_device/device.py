"""What seesay asks of the device. The entry point of the package names `MyDevice`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from my_device.build import build
from my_device.graphs import CalledAgain
from my_device.ops import MyOps
from seesay.device.accelerator import Accelerator, Graph, Memory

_LOCK = threading.Lock()


class Counters(NamedTuple):
    """What crossed between host and device since the process began. waits: how often the host waited for a value."""

    copies_to_device: int
    bytes_to_device: int
    copies_to_host: int
    bytes_to_host: int
    waits: int
    operations: int


def read_counters() -> Counters:
    return Counters(*torch.ops.my_device.read_counters())


def set_capacity(num_bytes: int, index: int = 0) -> None:
    """Set the memory of a device. At first it has as many GiB as the variable MY_DEVICE_GIB says, else 1."""
    torch.ops.my_device.set_capacity(index, num_bytes)


@cache
def _load() -> None:
    """Add the device to PyTorch, under the name that Ascend NPUs have there."""
    torch.ops.load_library(str(build()))  # type: ignore[no-untyped-call]
    rename_privateuse1_backend("npu")
    module = _make_module()
    torch._register_device_module("npu", module)
    for index in range(module.device_count()):
        set_capacity(int(os.environ.get("MY_DEVICE_GIB", "1")) << 30, index)


def _make_module() -> Any:
    """Return `torch.npu`: what PyTorch asks of the module of a device."""
    module: Any = ModuleType("torch.npu")
    module.is_available = lambda: True
    module.device_count = lambda: 2
    module.current_device = torch.accelerator.current_device_index
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = torch.default_generator.manual_seed
    return module


class MyDevice(Accelerator):
    """Its streams and events are those of PyTorch's device-neutral API; operations, graphs and the query of its memory
    are its own."""

    type = "npu"
    names = ("npu", "ascend", "my_device")
    label = "my_device"
    has_graphs = True
    has_float64 = False

    @property
    def missing(self) -> str | None:
        try:
            with _LOCK:
                _load()
        except (OSError, RuntimeError) as error:
            return str(error)
        return None

    def describe(self, index: int) -> str:
        return f"my_device ({self.measure_memory(torch.device('npu', index)).total_bytes / 2**30:.1f} GiB)"

    def describe_build(self) -> str:
        return "my_device 0.1"

    def make_ops(self) -> MyOps:
        return MyOps()

    def capture(self, run: Callable[[], Any], stream: torch.Stream, pool: Any) -> tuple[Graph, Any]:
        graph = CalledAgain(run)
        return graph, graph.result

    def measure_memory(self, device: torch.device) -> Memory:
        free, total, *_ = torch.ops.my_device.read_memory(device.index or 0)
        return Memory(free_bytes=free, total_bytes=total)
