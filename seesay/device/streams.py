"""CUDA streams, points in them (events), and CUDA graphs. On the CPU all work is done when it is queued."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def make_stream(device: torch.device, *, is_urgent: bool) -> torch.cuda.Stream | None:
    """Return a new stream. Waiting work of an urgent stream starts before that of other streams. None on the CPU."""
    import torch

    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-1 if is_urgent else 0)  # type: ignore[no-untyped-call]


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return the current stream of `device`; None on the CPU."""
    import torch

    return torch.cuda.current_stream(device) if device.type == "cuda" else None


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Queue the work of the block on `stream`. None leaves the current stream."""
    import torch

    if stream is None:
        yield
    else:
        with torch.cuda.stream(stream):
            yield


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Launch the kernels of the block on `device`, which may be another GPU than the current one."""
    import torch

    if device.type != "cuda":
        yield
    else:
        with torch.cuda.device(device):
            yield


def hold_stream(stream: torch.cuda.Stream, event: torch.cuda.Event | None) -> None:
    """Make all later work of `stream` start after `event`. The host does not wait."""
    if event is not None:
        stream.wait_event(event)


def record_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Return an event that marks the end of all work queued on `stream` so far."""
    event: torch.cuda.Event = stream.record_event()
    return event


def record_done(stream: torch.cuda.Stream | None) -> Callable[[], None]:
    """Return a function that waits for all work queued on `stream` so far. It waits without the GIL."""
    import torch

    if stream is None:
        return lambda: None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event.synchronize


class Stopwatch:
    """Measures how long the work takes that is queued on a stream from its making until `stop`; on the CPU, where
    `stream` is None, the time between the two calls."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
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


def _record_timed_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    import torch

    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


class StreamPoint:
    """A point in the work of one stream for which other streams can wait, without the host. Does nothing on the CPU,
    where all work is done when it is queued."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

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
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]


def _do_nothing() -> None:
    pass


class GraphRecorder:
    """Capture work of a GPU as CUDA graphs, which the host launches with one call. The graphs of one recorder share
    memory: they run one after the other, and the output of one must be used before another one runs. Without a stream,
    as on the meta device, nothing is captured."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        import torch

        self._stream = stream
        self._pool = None if stream is None else torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Capture `run`, which is called twice. Returns a function that replays it on the current stream, and the
        output of `run`: tensors that each replay fills again. The inputs must stay at their addresses."""
        import torch

        if self._stream is None:
            return _do_nothing, run()
        with torch.cuda.stream(self._stream):
            run()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # `torch.cuda.graph` would wait for all streams and release cached memory, which stalls other threads.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = run()
            finally:
                graph.capture_end()
        return graph.replay, result


@contextmanager
def traced(name: str, device: torch.device) -> Iterator[None]:
    """Name the block in profiles of CUDA programs (an NVTX range)."""
    import torch

    if device.type != "cuda":
        yield
        return
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
