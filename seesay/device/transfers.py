"""Asynchronous copies between the host and a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from seesay.device.query import synchronize
from seesay.device.registry import accelerator_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


def mark_used(tensor: torch.Tensor) -> None:
    """Tell torch's allocator that the current stream uses `tensor`, which may have been allocated on another stream.
    Its memory is not reused before the work queued so far is done."""
    stream = accelerator_of(tensor.device).current_stream(tensor.device)
    if stream is not None:
        tensor.record_stream(stream)


def upload(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Return tensors on `device` with the contents of `arrays`. On a GPU this is one asynchronous copy for all of them.
    On the CPU the tensors share memory with the arrays, which must be writable. Numbers of float64 become float32 where
    the device has none."""
    import torch

    kind = accelerator_of(device)
    if not kind.has_float64:
        arrays = [array.astype("float32") if array.dtype == "float64" else array for array in arrays]
    if not kind.has_pins:
        return [torch.from_numpy(array).to(device) for array in arrays]
    offsets = [
        0,
        *accumulate(-(-array.nbytes // 16) * 16 for array in arrays),
    ]  # Triton's kernels load 16-byte aligned data faster
    host = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=True)
    spans = [slice(start, start + array.nbytes) for start, array in zip(offsets, arrays)]
    here = host.numpy()
    for span, array in zip(spans, arrays, strict=True):
        here[span].view(array.dtype).reshape(array.shape)[...] = array
    there = host.to(device, non_blocking=True)
    return [
        there[span].view(_torch_type(array.dtype)).view(array.shape) for span, array in zip(spans, arrays, strict=True)
    ]


def upload_stacked(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> torch.Tensor:
    """Return arrays of one shape below each other, as a tensor on `device`. Asynchronous on a GPU."""
    import numpy as np
    import torch

    shape = (len(arrays), *arrays[0].shape)
    host = torch.empty(shape, dtype=_torch_type(arrays[0].dtype), pin_memory=accelerator_of(device).has_pins)
    np.stack(arrays, out=host.numpy())
    return host.to(device, non_blocking=True)


def empty_words(num_rows: int, num_words: int, device: torch.device) -> npt.NDArray[np.int32]:
    """Return int32 [num_rows, num_words] of memory from which `device` copies while the host goes on."""
    import torch

    return torch.empty((num_rows, num_words), dtype=torch.int32, pin_memory=accelerator_of(device).has_pins).numpy()


@cache
def _torch_type(kind: np.dtype[Any]) -> torch.dtype:
    import numpy as np
    import torch

    return torch.from_numpy(np.empty(0, kind)).dtype


def upload_into(target: torch.Tensor, array: npt.NDArray[Any]) -> None:
    """Copy `array` into `target`, a contiguous tensor. Asynchronous on a GPU."""
    import torch

    host = torch.empty(target.shape, dtype=target.dtype, pin_memory=accelerator_of(target.device).has_pins)
    host.numpy()[:] = array
    target.copy_(host, non_blocking=True)


class PinnedMemory:
    """Pinned host memory, `tensor`, for asynchronous copies; ordinary memory for a device that pins none. It is freed
    with this object, after all work queued on the device."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.tensor, unpin = accelerator_of(device).pin(shape, dtype)
        if unpin is not None:
            weakref.finalize(self, _unpin, unpin, device).atexit = False


def _unpin(unpin: Callable[[], None], device: torch.device) -> None:
    synchronize(device)
    unpin()


class HostCopy:
    """Asynchronous copies of tensors to the host: queued on the current stream, waited for by `wait`.

    On the CPU these are the tensors themselves, which must not be changed before `wait`.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._event: torch.Event | None = None
        devices = {tensor.device for tensor in tensors if not (tensor.is_cpu or tensor.is_meta)}
        if not devices:
            self._tensors = tensors
            return
        [device] = devices
        kind = accelerator_of(device)
        self._tensors = tuple(t.to("cpu", non_blocking=kind.has_streams) for t in tensors)
        if kind.has_streams:
            self._event = kind.make_event(device)
            self._event.record(kind.current_stream(device))

    @property
    def is_done(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> tuple[torch.Tensor, ...]:
        """Wait for the copies and return them. It waits without the GIL."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors
