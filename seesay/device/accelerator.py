"""What the engine asks of a type of device, on PyTorch's device-neutral API.

A vendor's subclass says what differs. `seesay.device.registry` has those that are here, and the entry point by which
packages add theirs. Importing this module does not import torch.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a device in bytes."""

    free_bytes: int
    total_bytes: int


class Graph(Protocol):
    """Work that is captured once and launched by one call."""

    def replay(self) -> None: ...


class Work:
    """Streams, events and graphs of a type of device.

    has_streams: whether work is queued on streams, with events; if not, the host waits for all that it queues.
    has_graphs: whether `capture` captures work.
    """

    label: ClassVar[str]
    has_streams: ClassVar[bool] = True
    has_graphs: ClassVar[bool] = False

    def make_stream(self, device: torch.device, *, is_urgent: bool) -> torch.Stream | None:
        import torch

        return torch.Stream(device, priority=-1 if is_urgent else 0) if self.has_streams else None

    def current_stream(self, device: torch.device) -> torch.Stream | None:
        import torch

        return torch.accelerator.current_stream(device) if self.has_streams else None

    def use_stream(self, stream: torch.Stream) -> AbstractContextManager[object]:
        return stream

    def use_device(self, device: torch.device) -> AbstractContextManager[object]:
        import torch

        return torch.accelerator.device_index(device.index)

    def make_event(self, device: torch.device, *, is_timed: bool = False, is_blocking: bool = False) -> torch.Event:
        """Return an event. is_blocking: the host sleeps while it waits."""
        import torch

        return torch.Event(device, enable_timing=is_timed, blocking=is_blocking)

    def synchronize(self, device: torch.device) -> None:
        """Wait until all work queued on `device` is done."""
        import torch

        torch.accelerator.synchronize(device)

    def name_range(self, name: str) -> AbstractContextManager[object]:
        """Name the work of the block in the profiles of the vendor's tools."""
        return nullcontext()

    def make_graph_pool(self) -> Any:
        """Return the memory that graphs share."""
        return None

    def capture(self, run: Callable[[], Any], stream: torch.Stream, pool: Any) -> tuple[Graph, Any]:
        """Capture `run`, whose kernels are compiled and loaded, on `stream`, the current one. Returns the graph and
        what `run` returned: tensors that each replay fills again."""
        raise NotImplementedError(f"{self.label} captures no graphs")


class Allocation:
    """Memory of a type of device, and pinned memory of the host. has_pins: whether host memory can be pinned."""

    has_pins: ClassVar[bool] = True

    def measure_memory(self, device: torch.device) -> Memory:
        """Return the free and total memory. Cached but unused memory of PyTorch's allocator counts as free."""
        import torch

        free, total = torch.accelerator.get_memory_info(device)
        idle = torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
        return Memory(free_bytes=free + idle, total_bytes=total)

    def measure_peak(self, device: torch.device, run: Callable[[], object]) -> int:
        """Return the peak memory of `run` in bytes, beyond what is allocated before it."""
        import torch

        torch.accelerator.synchronize(device)
        before = torch.accelerator.memory_allocated(device)
        torch.accelerator.reset_peak_memory_stats(device)
        run()
        torch.accelerator.synchronize(device)
        return int(torch.accelerator.max_memory_allocated(device) - before)

    def release_cached_memory(self) -> None:
        import torch

        torch.accelerator.empty_cache()

    def pin(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, Callable[[], None] | None]:
        """Return pinned host memory, and what unpins it; None where its end does."""
        import torch

        return torch.empty(shape, dtype=dtype, pin_memory=self.has_pins), None


class Accelerator(Work, Allocation):
    """A type of device.

    type: PyTorch's name of it. names: what `device_type` may call it. label: what messages call it.
    package: the module that adds it to PyTorch; requirement: the package to install. None where PyTorch has it.
    collectives: the backend of `torch.distributed` that joins several; None where there is none.
    is_automatic: whether 'auto' chooses it where it is there.
    has_triton: whether Triton compiles for it. has_kernels: whether all our kernels are made for it.
    has_wide_products: whether `torch.mm` takes an `out_dtype`.
    has_causal_bias: whether attention has a kernel for the last tokens of a causal text.
    has_float64: whether it has numbers of 64 bits; where not, `seesay.device.transfers` sends float32.
    """

    type: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()
    package: ClassVar[str | None] = None
    requirement: ClassVar[str | None] = None
    collectives: ClassVar[str | None] = None
    is_automatic: ClassVar[bool] = True
    has_triton: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = False
    has_wide_products: ClassVar[bool] = False
    has_causal_bias: ClassVar[bool] = False
    has_float64: ClassVar[bool] = True

    @property
    def missing(self) -> str | None:
        """Why no such device can be used; None where one can."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"the package {self.requirement or self.package} is not installed"
        try:
            if self.package is not None:
                importlib.import_module(self.package)
        except (Exception, SystemExit) as error:  # a driver that is missing shows as any error of the vendor's
            return f"the package {self.requirement or self.package} cannot be imported: {error}"
        return None if self.is_available() else f"torch finds no {self.label}"

    def is_available(self) -> bool:
        """Return whether PyTorch can use at least one device. The package is imported."""
        import torch

        module = getattr(torch, self.type, None)
        return module is not None and bool(module.is_available())

    def count(self) -> int:
        """Return how many devices there are."""
        import torch

        return int(getattr(torch, self.type).device_count())

    def describe(self, index: int) -> str:
        """Return the name and the memory of a device."""
        import torch

        get_name = getattr(getattr(torch, self.type), "get_device_name", None)
        name = self.label if get_name is None else get_name(index)
        return f"{name} ({self.measure_memory(torch.device(self.type, index)).total_bytes / 2**30:.0f} GiB)"

    def describe_build(self) -> str:
        """Return what PyTorch was built for, or the vendor's package and its version."""
        module = None if self.package is None else importlib.import_module(self.package)
        return f"{self.requirement} {getattr(module, '__version__', '')}".rstrip() if module else self.type

    def has_fp8(self, device: torch.device) -> bool:
        return False

    def find_capability(self, device: torch.device) -> tuple[int, int]:
        """Return the compute capability, by which kernels that are made for NVIDIA's GPUs are chosen; (0, 0) of
        others."""
        return 0, 0

    def make_ops(self) -> Any:
        """Return the vendor's implementation of `seesay.llm.ops.Ops`; None where Triton's or torch's is used."""
        return None
