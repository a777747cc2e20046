"""The only place that asks torch.cuda anything."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from seesay.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device's memory."""

    free_bytes: int
    total_bytes: int


def pick_device(device_type: str) -> torch.device:
    """The device that `device_type` ('auto', 'cuda', 'cuda:N' or 'cpu') names on this machine.

    'auto' is CUDA where there is a GPU, else the CPU. Raises `ConfigError` for a GPU that is not there.
    """
    import torch

    if device_type == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(device_type)
    except RuntimeError:
        raise ConfigError(
            f"device_type={device_type!r} is not a device: use 'auto', 'cuda', 'cuda:N' or 'cpu'"
        ) from None
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
        raise ConfigError(f"device_type={device_type!r} is not supported: use 'auto', 'cuda', 'cuda:N' or 'cpu'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device_type={device_type!r} was asked for, but torch sees no CUDA GPU: use 'auto' or 'cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device_type={device_type!r}: this machine has {torch.cuda.device_count()} GPU(s)")
    return device


def measure_memory(device: torch.device) -> Memory:
    """Free and total memory of `device` now. Cached but unused blocks of torch's allocator count as free."""
    import torch

    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Memory(free_bytes=free + idle, total_bytes=total)
    return _measure_host_memory()


def measure_peak(device: torch.device, run: Callable[[], object]) -> int:
    """Bytes of `device`'s memory that `run` needs at its peak beyond what is allocated before it. Not for the CPU."""
    import torch

    assert device.type == "cuda"
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _measure_host_memory() -> Memory:
    """Host memory from /proc/meminfo and the cgroup limit, whichever is smaller; 8 GiB where neither can be read."""
    from pathlib import Path

    free = total = 8 << 30
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        free, total = (int(fields[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        if limit.isdigit():
            total, free = min(total, int(limit)), min(free, max(0, int(limit) - int(used)))
    except (OSError, KeyError, ValueError):
        pass
    return Memory(free_bytes=free, total_bytes=total)


def synchronize(device: torch.device) -> None:
    """Wait until all work queued on `device` is done; nothing to wait for on the CPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_stream(device: torch.device, *, is_urgent: bool) -> torch.cuda.Stream | None:
    """A queue of the device's work: what waits in an urgent one begins before what waits in others. None on the CPU."""
    import torch

    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-1 if is_urgent else 0)  # type: ignore[no-untyped-call]


def mark_used(tensor: torch.Tensor) -> None:
    """Tell torch's allocator that the current stream uses `tensor`, which may have been made on another one: its memory
    is not given to others before what is queued now is done."""
    import torch

    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def upload(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Tensors on `device` with the contents of `arrays`: on a GPU one copy for all of them, for which nobody waits; on
    the CPU the arrays themselves, which must be writable there."""
    import torch

    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    offsets = [0, *accumulate(-(-array.nbytes // 16) * 16 for array in arrays)]  # as Triton's kernels like them
    host = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=True)
    spans = [slice(start, start + array.nbytes) for start, array in zip(offsets, arrays)]
    here = host.numpy()
    for span, array in zip(spans, arrays, strict=True):
        here[span].view(array.dtype).reshape(array.shape)[...] = array
    there = host.to(device, non_blocking=True)
    return [
        there[span].view(_torch_type(array.dtype)).view(array.shape) for span, array in zip(spans, arrays, strict=True)
    ]


@cache
def _torch_type(kind: np.dtype[Any]) -> torch.dtype:
    import numpy as np
    import torch

    return torch.from_numpy(np.empty(0, kind)).dtype


class PinnedMemory:
    """Host memory, `tensor`, that a GPU copies from and to while the host goes on; for the CPU, any memory. It is given
    back with this object, after all work that is queued on the device.

    Pages that are there already are pinned three times as fast as torch's allocator makes pinned ones; it also rounds
    sizes up to powers of two, and keeps what it had.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        import torch

        self.tensor = torch.empty(shape, dtype=dtype)
        if device.type == "cuda":
            self.tensor.view(-1).view(torch.uint8)[:: mmap.PAGESIZE].zero_()
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(cudart.cudaHostRegister(self.tensor.data_ptr(), self.tensor.nbytes, 0))
            weakref.finalize(self, _unpin, self.tensor, device).atexit = False


def _unpin(tensor: torch.Tensor, device: torch.device) -> None:
    import torch

    synchronize(device)
    torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr()))  # type: ignore[no-untyped-call]


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


class HostCopy:
    """Copies of tensors on their way to the host: queued on the current stream, waited for when they are wanted.

    On the CPU the tensors themselves, which nobody may change before they are taken.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        import torch

        self._tensors = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        self._event: torch.cuda.Event | None = None
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if devices:
            [device] = devices
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    @property
    def is_done(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The copies, once they have arrived. Other Python threads run meanwhile."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors


def upload_into(target: torch.Tensor, array: npt.NDArray[Any]) -> None:
    """Fill `target`, which is dense, with the contents of `array`. Nobody waits for it on a GPU."""
    import torch

    host = torch.empty(target.shape, dtype=target.dtype, pin_memory=target.is_cuda)
    host.numpy()[:] = array
    target.copy_(host, non_blocking=True)


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


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The stream on which work of `device` is queued here; None on the CPU."""
    import torch

    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def record_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """What marks the end of all that is queued on `stream` by now."""
    import torch

    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def hold_stream(stream: torch.cuda.Stream, event: torch.cuda.Event | None) -> None:
    """Let what is queued on `stream` from now on begin after `event`. The host does not wait."""
    if event is not None:
        stream.wait_event(event)


def record_done(stream: torch.cuda.Stream | None) -> Callable[[], None]:
    """A function that returns when what is queued on `stream` by now is done. Other Python threads run meanwhile."""
    import torch

    if stream is None:
        return lambda: None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event.synchronize


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Queue the work of the block on `stream`; with None, where it is queued anyway."""
    import torch

    if stream is None:
        yield
    else:
        with torch.cuda.stream(stream):
            yield


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


@contextmanager
def cpu_threads(num_threads: int) -> Iterator[None]:
    """Let torch compute with `num_threads` CPU threads inside the block, in the calling thread alone."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def release_cached_memory(device: torch.device) -> None:
    """Give memory that torch's allocator holds but does not use back to the device."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device or the host ran out of memory."""
    import torch

    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError))


def describe_gpus() -> tuple[str, list[str]]:
    """(torch's version with what it was built for, one description per GPU that torch can use)."""
    import torch

    build = f"{torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA")
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        gpus.append(f"{properties.name} ({memory:.0f} GiB, compute capability {properties.major}.{properties.minor})")
    return build, gpus
