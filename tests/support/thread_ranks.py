"""Ranks that are threads of one process and meet at a barrier: for tests of what each of them computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from seesay.device.ranks import OpenSum, Place, Ranks

T = TypeVar("T")


class _Meeting:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=120)
        self.given: list[torch.Tensor] = [torch.empty(0)] * size


class ThreadRanks:
    """`Ranks` of one thread. calls: the shapes that were exchanged, by the kind of call."""

    def __init__(self, place: Place, meeting: _Meeting) -> None:
        self.place, self._meeting = place, meeting
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange("sum", x)).sum(0)

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        *summands, last = self._exchange("sum", x)
        return lambda: OpenSum(torch.stack(summands).sum(0), last)

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        residual.add_(self.sum(x))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange("gather", x), dim=1)

    def broadcast(self, x: torch.Tensor) -> None:
        x.copy_(self._exchange("broadcast", x)[0])

    def _exchange(self, kind: str, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, which must have one shape."""
        self.calls.append((kind, tuple(x.shape)))
        meeting = self._meeting
        meeting.given[self.place.rank] = x.clone()
        meeting.barrier.wait()
        found = list(meeting.given)
        meeting.barrier.wait()
        assert len({each.shape for each in found}) == 1, found
        return found


def make_ranks(size: int) -> list[ThreadRanks]:
    """Return so many ranks, one for each thread."""
    meeting = _Meeting(size)
    return [ThreadRanks(Place(rank, size), meeting) for rank in range(size)]


def run_ranks(size: int, compute: Callable[[Ranks], T]) -> list[T]:
    """Return what `compute` returns in each of so many ranks, which run at the same time."""
    meeting = _Meeting(size)

    def run(rank: int) -> T:
        try:
            return compute(ThreadRanks(Place(rank, size), meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return [future.result() for future in futures]
