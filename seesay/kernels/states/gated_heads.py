"""A Triton kernel of the norm of each head's output, times what its gate gives."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.dependent_launch import wait
from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from


@triton.jit
def gate_heads_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    gate_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (t, h) computes head h of token t. IS_SIGMOID: the gate is a sigmoid, and nothing is rounded before the
    output; else SiLU, and what goes into the norm and comes out of it has the type of the output."""
    wait(IS_DEPENDENT)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    is_inside = columns < SIZE
    places = (token * NUM_HEADS + head) * SIZE + columns
    dtype = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + places, mask=is_inside, other=0.0).to(tl.float32)
    if not IS_SIGMOID:
        x = x.to(dtype).to(tl.float32)
    normed = x * (1.0 / tl.sqrt(tl.sum(x * x) / SIZE + eps))
    normed = normed * tl.load(weight_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * gate_stride + head * SIZE + columns, mask=is_inside, other=0.0).to(tl.float32)
    opened = tl.sigmoid(gate)
    if not IS_SIGMOID:
        normed = normed.to(dtype).to(tl.float32)
        opened = opened * gate
    tl.store(out_ptr + places, (normed * opened).to(dtype), mask=is_inside)


def gate_heads(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, is_sigmoid: bool
) -> torch.Tensor:
    """See `gate_heads` in `seesay/llm/ops/states.py`."""
    num_tokens, num_heads, size = x.shape
    assert x.is_contiguous() and gate.shape == (num_tokens, num_heads * size) and gate.stride(1) == 1
    out = torch.empty(gate.shape, dtype=gate.dtype, device=x.device)
    if not num_tokens:
        return out
    is_dependent = has_dependent_launch(x.get_device())
    gate_heads_kernel[(num_tokens, num_heads)](
        x,
        gate,
        weight,
        out,
        gate.stride(0),
        eps,
        NUM_HEADS=num_heads,
        SIZE=size,
        BLOCK=power_of_2_from(size),
        IS_SIGMOID=is_sigmoid,
        IS_DEPENDENT=is_dependent,
        num_warps=1,
        **nvidia_options(launch_pdl=is_dependent),
    )
    return out
