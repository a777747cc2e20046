"""The deterministic mode: a decoder that is made inside of `deterministic` computes every row with the same bits,
whatever rows are computed beside it and wherever among them it is.

Operations on single elements need care on the CPU: torch computes the elements behind the last whole vector of a
thread's share one by one, and by other functions. So they are computed by one thread, for a multiple of `GROUP` rows:
then every element lies in a whole vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from seesay.device.query import cpu_threads

if TYPE_CHECKING:
    import torch

GROUP = 32
"""Rows that are computed together: with them, the elements of any rows fill whole vectors of the CPU, two at a time."""

_dtype: ContextVar[torch.dtype | None] = ContextVar("deterministic_dtype", default=None)


@contextmanager
def deterministic(dtype: torch.dtype | None) -> Iterator[None]:
    """Make decoders inside of the block for the deterministic mode, with activations of `dtype`; None: as usual."""
    token = _dtype.set(dtype)
    try:
        yield
    finally:
        _dtype.reset(token)


def deterministic_dtype() -> torch.dtype | None:
    """Return the type of activations, if what is made now is for the deterministic mode; else None."""
    return _dtype.get()


def is_deterministic() -> bool:
    """Return whether what is made now is for the deterministic mode."""
    return _dtype.get() is not None


def fill_groups(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return x, which is not empty, with copies of its last row behind it that fill whole groups; dense, and never x
    itself."""
    import torch

    count = x.shape[dim]
    places = torch.arange(-(-count // GROUP) * GROUP, device=x.device).clamp_(max=count - 1)
    return x.index_select(dim, places)


def by_groups(compute: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that computes what `compute` does for each row of its input [T, …]; in the deterministic mode,
    with the same bits for equal rows."""
    if not is_deterministic():
        return compute

    def compute_groups(x: torch.Tensor) -> torch.Tensor:
        if not x.is_cpu or not len(x):
            return compute(x)
        with cpu_threads(1):
            return compute(fill_groups(x))[: len(x)]

    return compute_groups
