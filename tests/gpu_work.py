"""Work that keeps a GPU busy, and streams and events for it; torch does not annotate the functions that make them."""

from __future__ import annotations

from collections.abc import Callable
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
