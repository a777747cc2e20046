"""GPUs of PyTorch's type 'cuda': NVIDIA's, and AMD's in a ROCm build of PyTorch. All that is particular to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from seesay.device.accelerator import Accelerator, Allocation, Graph, Memory, Work

if TYPE_CHECKING:
    import torch


class _CudaWork(Work):
    """Streams, events and graphs of CUDA."""

    has_graphs = True

    def make_stream(self, device: torch.device, *, is_urgent: bool) -> torch.Stream | None:
        import torch

        return torch.cuda.Stream(device, priority=-1 if is_urgent else 0)  # type: ignore[no-untyped-call]

    def current_stream(self, device: torch.device) -> torch.Stream | None:
        import torch

        return torch.cuda.current_stream(device)

    def use_stream(self, stream: torch.Stream) -> AbstractContextManager[object]:
        import torch

        return torch.cuda.stream(stream)  # type: ignore[arg-type]

    def use_device(self, device: torch.device) -> AbstractContextManager[object]:
        import torch

        return torch.cuda.device(device)

    def make_event(self, device: torch.device, *, is_timed: bool = False, is_blocking: bool = False) -> torch.Event:
        import torch

        return torch.cuda.Event(enable_timing=is_timed, blocking=is_blocking)  # type: ignore[no-untyped-call]

    def synchronize(self, device: torch.device) -> None:
        import torch

        torch.cuda.synchronize(device)

    @contextmanager
    def name_range(self, name: str) -> Iterator[None]:
        """An NVTX range."""
        import torch

        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    def make_graph_pool(self) -> Any:
        import torch

        return torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], Any], stream: torch.Stream, pool: Any) -> tuple[Graph, Any]:
        import torch

        graph = torch.cuda.CUDAGraph()
        # `torch.cuda.graph` would wait for all streams and release cached memory, which stalls other threads.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            result = run()
        finally:
            graph.capture_end()
        return graph, result


class _CudaMemory(Allocation):
    """PyTorch's allocator for CUDA, and memory that CUDA pins."""

    def measure_memory(self, device: torch.device) -> Memory:
        import torch

        free, total = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Memory(free_bytes=free + idle, total_bytes=total)

    def measure_peak(self, device: torch.device, run: Callable[[], object]) -> int:
        import torch

        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)

    def release_cached_memory(self) -> None:
        import torch

        torch.cuda.empty_cache()

    def pin(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, Callable[[], None] | None]:
        """Pin existing pages, which is three times as fast as PyTorch's allocator of pinned memory; that also rounds
        sizes up to powers of two and never releases memory."""
        import mmap

        import torch

        tensor = torch.empty(shape, dtype=dtype)
        tensor.view(-1).view(torch.uint8)[:: mmap.PAGESIZE].zero_()
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(cudart.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))

        def unpin() -> None:
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr()))  # type: ignore[no-untyped-call]

        return tensor, unpin


class Cuda(_CudaWork, _CudaMemory, Accelerator):
    """NVIDIA GPUs."""

    type = "cuda"
    names = ("cuda",)
    label = "CUDA GPU"
    collectives = "nccl"
    has_triton = has_kernels = True
    has_wide_products = True
    has_causal_bias = True

    @property
    def missing(self) -> str | None:
        return None if self.is_available() else f"torch finds no {self.label}"

    def count(self) -> int:
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def describe(self, index: int) -> str:
        import torch

        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        kind = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
        kind = kind or f"compute capability {properties.major}.{properties.minor}"
        return f"{properties.name} ({memory:.0f} GiB, {kind})"

    def describe_build(self) -> str:
        import torch

        if torch.version.hip:
            return f"ROCm {torch.version.hip}"
        return f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"

    def has_fp8(self, device: torch.device) -> bool:
        return self.find_capability(device) >= (8, 9)

    def find_capability(self, device: torch.device) -> tuple[int, int]:
        import torch

        return torch.cuda.get_device_capability(device)


class Rocm(Cuda):
    """AMD GPUs, which a ROCm build of PyTorch calls 'cuda'."""

    names = ("rocm",)
    label = "ROCm GPU"
    has_kernels = False
    has_wide_products = False
    has_causal_bias = False

    @property
    def missing(self) -> str | None:
        import torch

        if not torch.version.hip:
            return f"this torch ({torch.__version__}) is not built for ROCm: install a ROCm build of torch"
        return super().missing

    def has_fp8(self, device: torch.device) -> bool:
        return True

    def find_capability(self, device: torch.device) -> tuple[int, int]:
        return 0, 0  # what PyTorch returns is AMD's number: 9.4 says nothing of Hopper


def find_peers() -> tuple[int, Callable[[int, int], bool]]:
    """Return how many GPUs there are, and what says of two whether the first reaches the memory of the second."""
    import torch

    return CUDA.count(), torch.cuda.can_device_access_peer


CUDA, ROCM = Cuda(), Rocm()
