"""The types of devices, by PyTorch's name and by what `device_type` calls them. Packages add theirs by an entry point.

Importing this module does not import torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.device.accelerator import Accelerator, Memory
from seesay.device.cuda import CUDA, ROCM
from seesay.device.host_memory import measure_host_memory
from seesay.errors import ConfigError, describe

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import torch

logger = logging.getLogger("seesay")

ENTRY_POINTS = "seesay.devices"
"""The group of entry points, each of which names a subclass of `Accelerator`: 'package.module:Class'."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Host(Accelerator):
    """The CPU, on which all work is done when it is queued."""

    type = "cpu"
    names: ClassVar[tuple[str, ...]] = ("cpu",)
    label = "CPU"
    collectives = "gloo"
    has_streams = has_pins = False

    def is_available(self) -> bool:
        return True

    def count(self) -> int:
        return 1

    def has_fp8(self, device: torch.device) -> bool:
        return True

    def use_device(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext()

    def synchronize(self, device: torch.device) -> None:
        pass

    def measure_memory(self, device: torch.device) -> Memory:
        return Memory(*measure_host_memory())

    def measure_peak(self, device: torch.device, run: Callable[[], object]) -> int:
        raise AssertionError("the peak of the host's memory is not measured")

    def release_cached_memory(self) -> None:
        pass


class Meta(Host):
    """Stands for a CUDA GPU that this process does not use: see `seesay.kernels.absent_gpu`. It takes whatever it is
    given."""

    type = "meta"
    names = ()
    label = "absent GPU"
    has_graphs = has_triton = has_kernels = True

    def has_fp8(self, device: torch.device) -> bool:
        return CUDA.has_fp8(device)

    def find_capability(self, device: torch.device) -> tuple[int, int]:
        return CUDA.find_capability(device)

    def measure_memory(self, device: torch.device) -> Memory:
        return Memory(free_bytes=1 << 40, total_bytes=1 << 40)

    def measure_peak(self, device: torch.device, run: Callable[[], object]) -> int:
        run()
        return 0


class Ascend(Accelerator):
    """Huawei's NPUs."""

    type = "npu"
    names = ("ascend", "npu")
    label = "Ascend NPU"
    package = "torch_npu"
    requirement = "torch-npu"
    collectives = "hccl"

    def measure_memory(self, device: torch.device) -> Memory:
        return _ask_module(device)

    def measure_peak(self, device: torch.device, run: Callable[[], object]) -> int:
        return _measure_peak_by_module(self, device, run)

    def release_cached_memory(self) -> None:
        import torch

        torch.npu.empty_cache()  # type: ignore[attr-defined, unused-ignore]


class Xpu(Accelerator):
    """Intel's GPUs."""

    type = "xpu"
    names = ("xpu",)
    label = "Intel XPU"
    collectives = "xccl"
    has_triton = True

    @property
    def missing(self) -> str | None:
        import torch

        if not torch.xpu._is_compiled():
            return f"this torch ({torch.__version__}) is not built for XPU: install an XPU build of torch"
        return super().missing

    def measure_memory(self, device: torch.device) -> Memory:
        return _ask_module(device)

    def describe_build(self) -> str:
        import torch

        return f"XPU {getattr(torch.version, 'xpu', None) or 'unknown'}"


class Mps(Accelerator):
    """Apple's GPUs, which share the host's memory. PyTorch queues all their work on one stream."""

    type = "mps"
    names = ("mps",)
    label = "Apple GPU (MPS)"
    is_automatic = False
    has_streams = has_pins = has_float64 = False

    @property
    def missing(self) -> str | None:
        import torch

        if not torch.backends.mps.is_built():
            return f"this torch ({torch.__version__}) is not built for MPS: it is on Macs with Apple's chips"
        return super().missing

    def use_device(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext()

    def describe(self, index: int) -> str:
        return self.label

    def describe_build(self) -> str:
        return "MPS"

    def synchronize(self, device: torch.device) -> None:
        import torch

        torch.mps.synchronize()

    def measure_memory(self, device: torch.device) -> Memory:
        import torch

        total = torch.mps.recommended_max_memory()
        return Memory(free_bytes=max(0, total - torch.mps.current_allocated_memory()), total_bytes=total)

    def measure_peak(self, device: torch.device, run: Callable[[], object]) -> int:
        """What the driver holds more after `run` than before it: PyTorch keeps no peak for this device."""
        import torch

        self.synchronize(device)
        torch.mps.empty_cache()
        before = torch.mps.driver_allocated_memory()
        run()
        self.synchronize(device)
        return max(0, int(torch.mps.driver_allocated_memory() - before))

    def release_cached_memory(self) -> None:
        import torch

        torch.mps.empty_cache()


def _ask_module(device: torch.device) -> Memory:
    """Ask the module of the vendor, as older versions of PyTorch have no neutral question."""
    import torch

    module: Any = getattr(torch, device.type)
    free, total = module.mem_get_info(device)
    return Memory(free + module.memory_reserved(device) - module.memory_allocated(device), total)


def _measure_peak_by_module(kind: Accelerator, device: torch.device, run: Callable[[], object]) -> int:
    import torch

    module: Any = getattr(torch, device.type)
    kind.synchronize(device)
    before = module.memory_allocated(device)
    module.reset_peak_memory_stats(device)
    run()
    kind.synchronize(device)
    return int(module.max_memory_allocated(device) - before)


HOST, META = Host(), Meta()
_BUILT_IN: tuple[Accelerator, ...] = (CUDA, ROCM, Ascend(), Xpu(), Mps(), HOST, META)
_KEPT = frozenset(("auto", *(name for kind in (CUDA, ROCM, HOST, META) for name in (kind.type, *kind.names))))
"""Names that packages cannot take."""


@cache
def load_added() -> tuple[Accelerator, ...]:
    """Return the types that packages add. One that fails, or has a name that is taken, is logged and left out."""
    from importlib.metadata import entry_points

    found: dict[str, Accelerator] = {}
    origins: dict[str, str] = {}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=_order):
        origin = f"package {entry.dist.name} {entry.dist.version}" if entry.dist else f"entry point {entry.name}"
        try:
            kind = _make_added(entry)
            for name in (kind.type, *kind.names):
                if name in origins:
                    raise ValueError(f"{name!r} is the name of a device of {origins[name]}: uninstall one of them")
        except (Exception, SystemExit) as error:
            reason = _in_one_line(describe(error))
            logger.warning("the device of %s (%s) cannot be used: %s", origin, entry.value, reason)
        else:
            origins |= dict.fromkeys((kind.type, *kind.names), origin)
            found[kind.type] = kind
    return tuple(found.values())


def _order(entry: EntryPoint) -> tuple[str, str]:
    return entry.name, entry.dist.name if entry.dist else ""


def _make_added(entry: EntryPoint) -> Accelerator:
    kind = entry.load()
    if not (isinstance(kind, type) and issubclass(kind, Accelerator)):
        raise TypeError(f"{entry.value} is not a subclass of seesay.device.accelerator.Accelerator")
    names = getattr(kind, "names", None)
    if not (isinstance(names, tuple) and names):
        raise TypeError(f"names must be a tuple of at least one name, got {names!r}")
    for name in (getattr(kind, "type", None), *names):
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or name in _KEPT:
            raise ValueError(
                f"type and names must be of letters, digits, '-' and '_', and none of {', '.join(sorted(_KEPT))}, "
                f"got {name!r}"
            )
    if not isinstance(getattr(kind, "label", None), str):
        raise TypeError("it has no label, which messages call it by")
    return kind()


def find_lack(kind: Accelerator) -> str | None:
    """Return why no device of this type can be used, in one line; None where one can. It is asked whatever the code of
    a vendor may raise."""
    import torch

    try:
        reason = kind.missing
        if reason is None:
            torch.device(kind.type)
            reason = None if kind.count() else f"torch finds no {kind.label}"
    except (Exception, SystemExit) as error:
        reason = f"whether there is one cannot be told: {describe(error)}"
    return None if reason is None else _in_one_line(reason)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def all_accelerators() -> Iterator[Accelerator]:
    """Yield all types in the order in which 'auto' looks for one. Those of packages come before our own of the same
    name, and behind NVIDIA's and AMD's."""
    yield CUDA
    yield ROCM
    yield from load_added()
    yield from _BUILT_IN[2:]


@cache
def accelerator_of_type(type: str) -> Accelerator:
    """Return what knows the devices that PyTorch calls `type`."""
    if type == CUDA.type:
        import torch

        return ROCM if torch.version.hip else CUDA
    for built_in in (HOST, META):
        if built_in.type == type:
            return built_in
    return next(kind for kind in all_accelerators() if kind.type == type)


def accelerator_of(device: torch.device) -> Accelerator:
    return accelerator_of_type(device.type)


def find_accelerator(name: str) -> Accelerator | None:
    """Return the type that `device_type` calls `name`."""
    return next((kind for kind in all_accelerators() if name in kind.names), None)


def choose_accelerator() -> tuple[Accelerator, list[str]]:
    """Return the type that 'auto' means, and why none of those before it."""
    reasons: list[str] = []
    seen: set[str] = set()
    for kind in all_accelerators():
        if kind is HOST:
            break
        if not kind.is_automatic or kind.type in seen or not kind.names:
            continue
        if (reason := find_lack(kind)) is None:
            return kind, reasons
        if kind is not ROCM:
            reasons.append(f"{kind.names[0]}: {reason}")
    return HOST, reasons


def list_names() -> str:
    """Return the names that `device_type` takes, for messages."""
    names = dict.fromkeys(name for kind in all_accelerators() for name in kind.names)
    return ", ".join(f"'{name}'" for name in ("auto", *names))


def read_name(device_type: str, option: str) -> tuple[Accelerator, int | None]:
    """Return what 'NAME' or 'NAME:N' names. Raises `ConfigError` that names the `option`."""
    name, colon, number = device_type.partition(":")
    kind = find_accelerator(name)
    is_number = number.isascii() and number.isdigit()
    if kind is None or (colon and not is_number) or (kind is HOST and colon):
        raise ConfigError(
            f"{option} must be one of {list_names()}, all but 'auto' and 'cpu' also with a number behind a colon, "
            f"got {device_type!r}"
        )
    return kind, int(number) if colon else None
