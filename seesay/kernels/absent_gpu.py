"""Compiles kernels for a GPU that this process does not use, in threads, where steps would launch them.

Steps run on tensors of the meta device, which have no values, or of the CPU. Kernels are compiled for what they are
called with and are not launched. What this pretends holds for the whole process: it is for processes that do nothing
else.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.runtime.jit import JITFunction

from seesay.kernels.gpu import shared_bytes


class Gpu(NamedTuple):
    """The properties of a GPU that kernels depend on."""

    capability: tuple[int, int]
    shared_bytes: int
    """Most shared memory of a block."""
    architecture: str | None = None
    """Of an AMD GPU, such as 'gfx942', which has warps of 64; None of NVIDIA's."""

    @classmethod
    def present(cls, index: int) -> Gpu:
        """Return the properties of a GPU of this machine. This takes no memory of it."""
        properties = torch.cuda.get_device_properties(index)
        return cls((properties.major, properties.minor), shared_bytes(index))


class Launches:
    """The launches that were left out.

    specializations: what Triton compiles, or would: (name, key), the name being module:function. kernels: (name, the
    compiled kernel or what will be it), one per launch; empty where nothing is compiled.
    """

    def __init__(self) -> None:
        self.specializations: set[tuple[str, str]] = set()
        self.kernels: list[tuple[str, Any]] = []


class _Driver:
    """Answers what Triton asks before it compiles."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def get_current_target(self) -> Any:
        make_target = importlib.import_module("triton.backends.compiler").GPUTarget
        if self._gpu.architecture is not None:
            return make_target("hip", self._gpu.architecture, 64)
        major, minor = self._gpu.capability
        return make_target("cuda", 10 * major + minor, 32)


@contextmanager
def absent_gpu(gpu: Gpu, executor: Executor | None) -> Iterator[Launches]:
    """Take all tensors for tensors of this GPU. `executor` compiles what is launched; None compiles nothing. At the end
    all is compiled; raises what the compiler raised."""
    launches = Launches()
    launch, is_true = JITFunction.run, torch.Tensor.__bool__

    def leave_out(self: Any, *args: Any, grid: Any, **options: Any) -> None:
        kernel = launch(self, *args, grid=grid, **{**options, "warmup": True})
        if kernel is not None:
            launches.kernels.append((name_kernel(self), kernel))

    def note(*, key: str, fn: Any, **_: Any) -> bool:
        launches.specializations.add((name_kernel(fn.jit_function), key))
        return executor is None

    major, minor = gpu.capability
    properties = SimpleNamespace(major=major, minor=minor, shared_memory_per_block_optin=gpu.shared_bytes)
    triton.runtime.driver.set_active(_Driver(gpu))
    with (
        # Tensors without values have ones: checks of values are written so that they hold for these.
        mock.patch.object(torch.Tensor, "__bool__", lambda tensor: tensor.is_meta or is_true(tensor)),
        mock.patch.object(torch.Tensor, "get_device", lambda _: 0),
        mock.patch.object(torch.cuda, "get_device_capability", lambda _=None: gpu.capability),
        mock.patch.object(torch.cuda, "get_device_properties", lambda _=None: properties),
        mock.patch.object(torch.version, "hip", None if gpu.architecture is None else "6"),
        mock.patch.object(JITFunction, "run", leave_out),
        mock.patch.object(triton.knobs.runtime, "jit_cache_hook", note),
        nullcontext() if executor is None else triton.AsyncCompileMode(executor),
    ):
        yield launches


def name_kernel(function: Any) -> str:
    """Return module:function."""
    return f"{function.fn.__module__}:{function.fn.__name__}"
