"""A type of device that notes what the engine asks of it, as of a GPU. No tensor is on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from seesay.device.accelerator import Accelerator, Memory
from seesay.device.registry import ENTRY_POINTS, accelerator_of_type, load_added

TOTAL_BYTES, PEAK_BYTES = 8000, 77


class Noted(Accelerator):
    """`calls` are the names of what was asked."""

    type, names, label = "noted", ("noted",), "noted device"
    has_kernels = True
    calls: ClassVar[list[str]] = []

    def use_device(self, device: Any) -> AbstractContextManager[object]:
        return nullcontext()

    def synchronize(self, device: Any) -> None:
        self.calls.append("synchronize")

    def release_cached_memory(self) -> None:
        self.calls.append("release cached memory")

    def measure_memory(self, device: Any) -> Memory:
        return Memory(free_bytes=0, total_bytes=TOTAL_BYTES)

    def measure_peak(self, device: Any, run: Callable[[], object]) -> int:
        self.calls.append("measure peak")
        run()
        return PEAK_BYTES


@contextmanager
def noted_device(folder: Path) -> Iterator[tuple[Any, list[str]]]:
    """A context in which an installed package, written to `folder`, adds this type. Gives a device, and the calls."""
    info = folder / "noted-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noted\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nnoted = noted_device:Noted\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        _forget()
        Noted.calls.clear()
        try:
            yield SimpleNamespace(type=Noted.type), Noted.calls
        finally:
            _forget()


def _forget() -> None:
    """Let the registry look for types of devices again."""
    load_added.cache_clear()
    accelerator_of_type.cache_clear()
