"""A Triton kernel of one step of a short convolution over the last inputs of each row, shifted where they lie."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.dependent_launch import wait
from seesay.kernels.gpu import has_dependent_launch, nvidia_options

_BLOCK = 256
"""Components that a program computes."""


@triton.jit(do_not_specialize=["size"])
def convolve_step_kernel(
    x_ptr,
    states_ptr,
    weight_ptr,
    bias_ptr,
    slots_ptr,
    out_ptr,
    size,
    x_stride,
    slot_stride,
    weight_stride,
    NUM_TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (b, i) computes components from i · BLOCK on of row b. ACTIVATES: SiLU of the output."""
    wait(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < size
    x = tl.load(x_ptr + row * x_stride + columns, mask=is_inside, other=0.0)
    weights = weight_ptr + columns * weight_stride
    own = states_ptr + tl.load(slots_ptr + row) * slot_stride + columns
    total = x.to(tl.float32) * tl.load(weights + NUM_TAPS - 1, mask=is_inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(NUM_TAPS - 1):
        old = tl.load(own + tap * size, mask=is_inside, other=0.0)
        if tap > 0:
            tl.store(own + (tap - 1) * size, old, mask=is_inside)
        weight = tl.load(weights + tap, mask=is_inside, other=0.0).to(tl.float32)
        total += old.to(x.dtype).to(tl.float32) * weight
    tl.store(own + (NUM_TAPS - 2) * size, x.to(states_ptr.dtype.element_ty), mask=is_inside)
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
    if ACTIVATES:
        total = total.to(x.dtype).to(tl.float32)
        total = total * tl.sigmoid(total)
    tl.store(out_ptr + row * size + columns, total.to(x.dtype), mask=is_inside)


def convolve_step(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    slots: torch.Tensor,
    *,
    activates: bool,
) -> torch.Tensor:
    """Return `torch_states.convolve` [B, C] of one token of each row, or SiLU of it; the last inputs of rows,
    states[slots[b]], are changed. Rows whose slots are the same are padding."""
    num_rows, size = x.shape
    num_taps = weight.shape[1]
    assert x.stride(1) == 1 and states.stride(2) == 1 and states.stride(1) == size and num_taps == states.shape[1] + 1
    assert weight.stride(1) == 1 and slots.is_contiguous() and num_taps > 1
    out = torch.empty(num_rows, size, dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    is_dependent = has_dependent_launch(x.get_device())
    convolve_step_kernel[(num_rows, triton.cdiv(size, _BLOCK))](
        x,
        states,
        weight,
        weight if bias is None else bias,
        slots,
        out,
        size,
        x.stride(0),
        states.stride(0),
        weight.stride(0),
        NUM_TAPS=num_taps,
        BLOCK=_BLOCK,
        HAS_BIAS=bias is not None,
        ACTIVATES=activates,
        IS_DEPENDENT=is_dependent,
        num_warps=4,
        **nvidia_options(launch_pdl=is_dependent),
    )
    return out
