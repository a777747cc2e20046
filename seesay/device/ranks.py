"""The ranks that compute one model together, and what they exchange on their devices. Nothing here knows requests.

All ranks make the same calls in the same order, each from one thread at a time. On a GPU a call is queued on the
current stream and may be captured in a CUDA graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one rank among `size`: it holds slice `rank` of what is divided."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, self


_MOST_SENT = 4
"""Tensors that are on their way to the next stage, and kept until they are there."""
ALONE = Place()
"""Nothing is divided."""


class OpenSum(NamedTuple):
    """A sum whose last addition is left to its reader: own + other, rounded once; own alone where there is no other.
    `own` may be overwritten. The second `begin_sum` behind this one overwrites `other`."""

    own: torch.Tensor
    other: torch.Tensor | None = None

    def close(self) -> torch.Tensor:
        """Return the sum, in the place of `own`."""
        return self.own if self.other is None else self.own.add_(self.other)


class Ranks(Protocol):
    """A rank's view of all."""

    @property
    def place(self) -> Place: ...

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks of x [T, …], the same bits on every rank; x may be overwritten."""
        ...

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        """Begin what `sum` does, beside what is queued next, and return what waits for it. x is not used meanwhile. At
        most two sums are under way."""
        ...

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        """Add the sum over all ranks of x to `residual`, of the same shape and type, in place."""
        ...

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return [N, size · K]: x [N, K] of all ranks, side by side in their order."""
        ...

    def broadcast(self, x: torch.Tensor) -> None:
        """Overwrite x with that of rank 0."""
        ...


class TorchRanks:
    """`Ranks` on a process group of torch: gloo on the CPU, NCCL on GPUs."""

    def __init__(self, group: torch.distributed.ProcessGroup) -> None:
        self._group = group
        self.place = Place(group.rank(), group.size())

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        from torch import distributed

        distributed.all_reduce(x, group=self._group)
        return x

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        from torch import distributed

        work = distributed.all_reduce(x, group=self._group, async_op=True)

        def finish() -> OpenSum:
            work.wait()
            return OpenSum(x)

        return finish

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        residual.add_(self.sum(x))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        import torch
        from torch import distributed

        size, (num_rows, width) = self.place.size, x.shape
        pieces = x.new_empty(size * num_rows, width)
        name = "all_gather_single" if hasattr(distributed, "all_gather_single") else "all_gather_into_tensor"
        getattr(distributed, name)(pieces, x.contiguous(), group=self._group)  # torch 2.14 has renamed it
        return torch.cat(pieces.view(size, num_rows, width).unbind(), dim=1)

    def broadcast(self, x: torch.Tensor) -> None:
        from torch import distributed

        distributed.broadcast(x, group_src=0, group=self._group)


class Stages:
    """The place of a rank among the stages of a model, of which each has some layers."""

    def __init__(self, place: Place) -> None:
        self.place = place


class TorchStages(Stages):
    """`Stages` that send tensors round: each to the next one, the last one to the first. On a GPU a tensor leaves
    beside what is queued next. groups: of all ranks, one for what each of them sends: directions wait for each other
    otherwise."""

    def __init__(self, place: Place, groups: Sequence[torch.distributed.ProcessGroup]) -> None:
        super().__init__(place)
        self._groups = groups
        self._sent: deque[tuple[torch.Tensor, torch.distributed.Work]] = deque()

    def send(self, x: torch.Tensor) -> None:
        """Send x to the next stage. Nothing may change it any more."""
        from torch import distributed

        rank, size = self.place.rank, self.place.size
        work = distributed.isend(x, group=self._groups[rank], group_dst=(rank + 1) % size)
        assert work is not None
        self._sent.append((x, work))
        while len(self._sent) > _MOST_SENT:
            self._sent.popleft()[1].wait()

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Overwrite x with what the stage before has sent, and return it."""
        from torch import distributed

        before = (self.place.rank - 1) % self.place.size
        work = distributed.irecv(x, group=self._groups[before], group_src=before)
        assert work is not None
        work.wait()
        return x


class Unconnected:
    """`Ranks` of a rank that has no others beside it: for what is computed for its shapes alone, on the meta device."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_meta
        return x

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        return lambda: OpenSum(self.sum(x))

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        residual.add_(self.sum(x))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_meta
        return x.new_empty(len(x), self.place.size * x.shape[1])

    def broadcast(self, x: torch.Tensor) -> None:
        assert x.is_meta
