"""A GPU's queues of work: streams, points in them, and recorded graphs. On the CPU work is done when it is queued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def make_stream(device: torch.device, *, is_urgent: bool) -> torch.cuda.Stream | None:
    """A queue of the device's work: what waits in an urgent one begins before what waits in others. None on the CPU."""
    import torch

    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-1 if is_urgent else 0)  # type: ignore[no-untyped-call]


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The stream on which work of `device` is queued here; None on the CPU."""
    import torch

    return torch.cuda.current_stream(device) if device.type == "cuda" else None


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Queue the work of the block on `stream`; with None, where it is queued anyway."""
    import torch

    if stream is None:
        yield
    else:
        with torch.cuda.stream(stream):
            yield


def hold_stream(stream: torch.cuda.Stream, event: torch.cuda.Event | None) -> None:
    """Let what is queued on `stream` from now on begin after `event`. The host does not wait."""
    if event is not None:
        stream.wait_event(event)


def record_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """What marks the end of all that is queued on `stream` by now."""
    import torch

    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def record_done(stream: torch.cuda.Stream | None) -> Callable[[], None]:
    """A function that returns when what is queued on `stream` by now is done. Other Python threads run meanwhile."""
    import torch

    if stream is None:
        return lambda: None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event.synchronize


class StreamPoint:
    """A point in the work queued on one stream for which others wait, without the host. On the CPU, where all work is
    done when it is queued, nothing."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def record(self) -> None:
        """Let the point be behind what is queued on the current stream now."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Let what is queued on the current stream from now on begin after the point. One never recorded is past."""
        if self._event is not None:
            self._event.wait()

    @property
    def is_past(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]


class GraphRecorder:
    """Records work of a GPU as CUDA graphs, which the host then starts with one call. Graphs of one recorder share
    their memory: they run one after the other, and what one of them made is used before another runs."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        import torch

        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """(what repeats `run` on the current stream, what `run` returned: tensors that each repetition fills anew).
        `run` is called twice; its inputs stay where they are."""
        import torch

        with torch.cuda.stream(self._stream):
            run()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # `torch.cuda.graph` would wait for all streams and give cached memory back, for which others would wait.
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
