"""Graphs of tower calls, for shapes that repeat: the host then launches one graph instead of hundreds of kernels,
and holds the GIL for less time."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from seesay.device.streams import GraphRecorder, can_capture, current_stream

if TYPE_CHECKING:
    from torch import Stream

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

CALLS_BEFORE = 2
"""A graph is recorded for a shape that has been computed so many times."""
MAX_GRAPHS = 16
MAX_ROWS = 16384
"""Larger inputs take the GPU longer than their launch takes the host, and their graphs would hold much memory."""
MAX_COUNTED_SHAPES = 1024


class Plan(Protocol[K_contra]):
    """Returns a function that computes vectors [… P, size] of a shape that was computed `num_before` times before."""

    def __call__(self, shape: K_contra, /, *, num_before: int) -> Callable[[Tensor], Tensor]: ...


def plan_alike(model: Callable[[Tensor], Tensor]) -> Plan[int]:
    """Return the plan of a model that computes inputs of all shapes alike."""

    def plan(_shape: int, /, *, num_before: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG001
        return model

    return plan


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded graph. `compute` holds the tensors that it reads besides its input."""

    compute: Callable[[Tensor], Tensor]
    replay: Callable[[], None]
    input: Tensor
    output: Tensor


class GraphedTower(Generic[K]):
    """Computes vectors x [… P, size] with `plan`. A shape determines everything that the launched kernels depend on, P
    included.

    Graphs are recorded for one stream only, the current one at the first call, unless that is the default stream. Set
    `records_graphs` to False to record none: all calls of a shape are then computed as the first one.
    """

    def __init__(self, plan: Plan[K], *, max_graphs: int = MAX_GRAPHS, max_rows: int = MAX_ROWS) -> None:
        """Keep `max_graphs` at most, of inputs of at most `max_rows` vectors."""
        self.records_graphs = True
        self._max_graphs = max_graphs
        self._max_rows = max_rows
        self._plan = plan
        self._stream: Stream | None = None
        self._recorder: GraphRecorder | None = None
        self._counts: Counter[K] = Counter()
        self._graphs: OrderedDict[K, _Graph] = OrderedDict()  # the least recently used first

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def __call__(self, x: Tensor, shape: K, dtype: torch.dtype) -> Tensor:
        """Return the result for x as `dtype`, in memory that the caller owns."""
        num_before = self._count(shape) if self.records_graphs else 0
        graph = self._find_graph(x, shape, dtype, num_before) if self._may_record(x) else None
        if graph is None:
            return self._plan(shape, num_before=num_before)(x.to(dtype))
        graph.input.copy_(x)
        graph.replay()
        return graph.output.clone()

    def forget(self) -> None:
        """Drop all graphs and the memory that they share. None is being computed."""
        self._graphs.clear()
        self._recorder = None

    def _count(self, shape: K) -> int:
        """Return how many calls with this shape came before this one."""
        if shape not in self._counts and len(self._counts) == MAX_COUNTED_SHAPES:
            self._counts.clear()
        self._counts[shape] += 1
        return self._counts[shape] - 1

    def _may_record(self, x: Tensor) -> bool:
        stream = current_stream(x.device)
        if (
            stream is None
            or not self.records_graphs
            or x.shape[:-1].numel() > self._max_rows
            or not can_capture(stream)
        ):
            return False
        if self._recorder is None:
            self._stream, self._recorder = stream, GraphRecorder(stream)
        return stream == self._stream

    def _find_graph(self, x: Tensor, shape: K, dtype: torch.dtype, num_before: int) -> _Graph | None:
        """Return the graph of a shape, recorded now if the shape has repeated often enough, else None. At `max_graphs`
        a shape replaces the least recently used one only if it has been computed at least as often."""
        if shape in self._graphs:
            self._graphs.move_to_end(shape)
            return self._graphs[shape]
        if num_before < CALLS_BEFORE:
            return None
        if len(self._graphs) == self._max_graphs:
            oldest = next(iter(self._graphs))
            if num_before < self._counts[oldest]:
                return None
            # Its last replay may still be queued. CUDA frees a graph in flight after it has run (`cuGraphExecDestroy`),
            # and the memory of its tensors is reused by later work of this stream only.
            del self._graphs[oldest]
        assert self._recorder is not None
        compute, place = self._plan(shape, num_before=num_before), x.to(dtype, copy=True)
        replay, output = self._recorder.record(lambda: compute(place))
        self._graphs[shape] = _Graph(compute, replay, place, output)
        return self._graphs[shape]


class GraphedEncoder:
    """The part of an encoder that is the same for all whose tower is a `GraphedTower`."""

    _graphed: GraphedTower[Any]

    def disable_graphs(self) -> None:
        self._graphed.records_graphs = False

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """Compute without graphs in the block; those that were recorded stay."""
        records, self._graphed.records_graphs = self._graphed.records_graphs, False
        try:
            yield
        finally:
            self._graphed.records_graphs = records

    def forget_graphs(self) -> None:
        self._graphed.forget()
