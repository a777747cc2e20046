"""Streams of a device, points in them (events), and graphs. On the CPU all work is done when it is queued."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from seesay.device.registry import accelerator_of

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def make_stream(device: torch.device, *, is_urgent: bool) -> torch.Stream | None:
    """Return a new stream. Waiting work of an urgent stream starts before that of other streams. None on the CPU, and
    on devices without streams."""
    return accelerator_of(device).make_stream(device, is_urgent=is_urgent)


def current_stream(device: torch.device) -> torch.Stream | None:
    """Return the current stream of `device`; None on the CPU."""
    return accelerator_of(device).current_stream(device)


def on_stream(stream: torch.Stream | None) -> AbstractContextManager[object]:
    """Queue the work of the block on `stream`. None leaves the current stream."""
    return nullcontext() if stream is None else accelerator_of(stream.device).use_stream(stream)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Launch the kernels of the block on `device`, which may be another GPU than the current one."""
    return accelerator_of(device).use_device(device)


def hold_stream(stream: torch.Stream, event: torch.Event | None) -> None:
    """Make all later work of `stream` start after `event`. The host does not wait."""
    if event is not None:
        stream.wait_event(event)


def record_event(stream: torch.Stream) -> torch.Event:
    """Return an event that marks the end of all work queued on `stream` so far."""
    return stream.record_event()


def record_done(stream: torch.Stream | None) -> Callable[[], None]:
    """Return a function that waits for all work queued on `stream` so far. It waits without the GIL."""
    if stream is None:
        return _do_nothing
    event = accelerator_of(stream.device).make_event(stream.device, is_blocking=True)
    event.record(stream)
    return event.synchronize


class Stopwatch:
    """Measures how long the work takes that is queued on a stream from its making until `stop`; on the CPU, where
    `stream` is None, the time between the two calls."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream
        self._events = [] if stream is None else [_record_timed_event(stream)]
        self._started_s = time.perf_counter()
        self._stopped_s = self._started_s

    def stop(self) -> None:
        if self._stream is None:
            self._stopped_s = time.perf_counter()
        else:
            self._events.append(_record_timed_event(self._stream))

    def seconds(self) -> float:
        """Return the seconds until `stop`. Waits for the work."""
        if self._stream is None:
            return self._stopped_s - self._started_s
        began, ended = self._events
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3


def _record_timed_event(stream: torch.Stream) -> torch.Event:
    event = accelerator_of(stream.device).make_event(stream.device, is_timed=True)
    event.record(stream)
    return event


class StreamPoint:
    """A point in the work of one stream for which other streams can wait, without the host. Does nothing on the CPU,
    where all work is done when it is queued."""

    def __init__(self, device: torch.device) -> None:
        kind = accelerator_of(device)
        self._event = kind.make_event(device) if kind.has_streams else None

    def record(self) -> None:
        """Set the point to the end of the work queued on the current stream so far."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Make all later work of the current stream start after the point. Does nothing if it was never recorded."""
        if self._event is not None:
            self._event.wait()

    @property
    def is_past(self) -> bool:
        return self._event is None or bool(self._event.query())


def _do_nothing() -> None:
    pass


class GraphRecorder:
    """Capture work of a device as graphs, which the host launches with one call. The graphs of one recorder share
    memory: they run one after the other, and the output of one must be used before another one runs. Without a stream,
    as on the meta device, nothing is captured."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream
        self._pool = None if stream is None else accelerator_of(stream.device).make_graph_pool()

    def record(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Capture `run`, which is called twice. Returns a function that replays it on the current stream, and the
        output of `run`: tensors that each replay fills again. The inputs must stay at their addresses."""
        if self._stream is None:
            return _do_nothing, run()
        kind = accelerator_of(self._stream.device)
        with kind.use_stream(self._stream):
            run()
            self._stream.synchronize()
            graph, result = kind.capture(run, self._stream, self._pool)
        return graph.replay, result


def can_capture(stream: torch.Stream | None) -> bool:
    """Return whether graphs are captured on `stream`: on one that is not the default stream of its device, which
    captures graphs at all."""
    return stream is not None and bool(stream.stream_id) and accelerator_of(stream.device).has_graphs


def traced(name: str, device: torch.device) -> AbstractContextManager[object]:
    """Name the block in profiles of the vendor's tools (on CUDA, an NVTX range)."""
    return accelerator_of(device).name_range(name)
