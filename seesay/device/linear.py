"""y = x Wᵀ + b, and RMS norm, with the fastest kernels of the device. The layout of weights in memory is decided here.

On the CPU, oneDNN's kernels with a prepacked weight are two to seven times as fast as those that
`torch.nn.functional.linear` picks (measured on an AVX-512 machine, float32 and bfloat16, 1 to 480 rows).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec

import torch
import torch.nn.functional as F

LinearKernel = Callable[[torch.Tensor], torch.Tensor]
FusedKernel = Callable[..., torch.Tensor]

_PACKED_FOR_ROWS = 64
"""The number of rows for which weights are packed. The kernels accept any number; this choice is fast for all."""


def make_linear_kernel(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearKernel:
    """Return a function x [..., in] → x Wᵀ + b [..., out], for weight [out, in] and bias [out]. No gradients.

    On the CPU it holds a packed copy instead of `weight`, so that the caller can free `weight`.
    """
    if weight.device.type == "cpu":
        packed = _try_packed_kernel(weight, bias)
        if packed is not None:
            return packed

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias)

    return run


def make_fused_kernel(weight: torch.Tensor, bias: torch.Tensor | None) -> FusedKernel | None:
    """Return `seesay.kernels.few_row_matmul.multiply` with this weight and bias, the fastest kernel for up to
    `max_fused_rows` rows. None if it cannot run on this device."""
    if not max_fused_rows(weight.device, weight.dtype):
        return None
    from seesay.kernels.few_row_matmul import multiply

    return partial(multiply, weight=weight, bias=bias)


def max_fused_rows(device: torch.device, dtype: torch.dtype) -> int:
    """Return the largest number of rows for kernels of `make_fused_kernel`; 0 if there are none."""
    if device.type != "cuda" or find_spec("triton") is None:
        return 0
    from seesay.kernels.few_row_matmul import MAX_ROWS

    # More than one row was measured on Hopper only, and needs its shared memory.
    return MAX_ROWS if dtype.itemsize == 2 and torch.cuda.get_device_capability(device) >= (9, 0) else 1


def _try_packed_kernel(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearKernel | None:
    """Return the kernel with a packed weight, or None if this build of torch or this CPU has none for the dtype."""
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        with torch.inference_mode():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
            apply = torch.ops.mkldnn._linear_pointwise.default
            apply(weight.new_zeros(1, weight.shape[1]), packed, bias, "none", [], "")
    except (AttributeError, RuntimeError):
        return None

    def run(x: torch.Tensor) -> torch.Tensor:
        return apply(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]

    return run


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight over the last axis, computed in float32. No gradients.

    On the CPU `F.rms_norm` makes six passes over the data; `torch.linalg.vector_norm` makes one.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = torch.addcmul(_scalar(eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    return torch.mul(x, scale).mul_(weight)


@cache
def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value)
