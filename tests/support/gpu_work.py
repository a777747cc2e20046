"""Work that keeps a GPU busy, and streams and events for it; torch does not annotate the functions that make them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_sleep: Callable[[int], None] = torch.cuda._sleep
_make_stream: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
_make_event: Callable[[], Any] = torch.cuda.Event


def keep_gpu_busy(cycles: int) -> None:
    """Queue work of this many clock cycles on the current stream."""
    _sleep(cycles)


def make_gpu_stream() -> torch.cuda.Stream:
    return _make_stream()


def make_gpu_event() -> Any:
    """Return a `torch.cuda.Event`."""
    return _make_event()


@contextmanager
def forbid_syncs() -> Iterator[None]:
    """Raise where the host waits for the GPU. torch warns that this mode is a prototype whenever it is set."""
    with warnings.catch_warnings(action="ignore"):
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        with warnings.catch_warnings(action="ignore"):
            torch.cuda.set_sync_debug_mode("default")
