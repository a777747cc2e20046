"""y = W x for one vector x, in Triton: bound by reading W, so everything around the product rides along with it.

The norm of the input before it, SiLU · mul, or the sum with the residual stream behind it. A program takes a few rows
of W; it begins to read them before the kernel that makes x is done (programmatic dependent launch).
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.rows import activate

SPAN = 2048
"""Elements of a row that are read at a time."""


@triton.jit
def gemv_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    norm_ptr,
    out_ptr,
    num_rows,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    GATE: tl.constexpr,
    ADDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program i makes elements i · ROWS … of out [num_rows] from x [SIZE] and W [num_rows, SIZE].

    HAS_NORM: x is divided by its root mean square and multiplied by `norm` [SIZE]. GATE, if there
    is one: W has 2 · num_rows rows, and out is that activation of the first half, times the second half. ADDS: the product is added to out.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    is_row = rows < num_rows
    own = weight_ptr + rows.to(tl.int64)[:, None] * SIZE + columns[None, :]
    other = own + tl.cast(num_rows, tl.int64) * SIZE
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    gated_total = tl.zeros([ROWS, BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    is_inside = is_row[:, None] & (columns < SIZE)[None, :]
    weight = tl.load(own, mask=is_inside, other=0.0, eviction_policy="evict_first")
    gated = weight
    if GATE is not None:
        gated = tl.load(other, mask=is_inside, other=0.0, eviction_policy="evict_first")
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for first in range(0, SIZE, BLOCK):
        is_element = first + columns < SIZE
        x = tl.load(x_ptr + first + columns, mask=is_element, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += x * x
            x *= tl.load(norm_ptr + first + columns, mask=is_element, other=0.0).to(tl.float32)
        total += weight.to(tl.float32) * x[None, :]
        is_inside = is_row[:, None] & (first + BLOCK + columns < SIZE)[None, :]
        weight = tl.load(own + first + BLOCK, mask=is_inside, other=0.0, eviction_policy="evict_first")
        if GATE is not None:
            gated_total += gated.to(tl.float32) * x[None, :]
            gated = tl.load(other + first + BLOCK, mask=is_inside, other=0.0, eviction_policy="evict_first")
    scale = 1.0
    if HAS_NORM:
        scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / SIZE + eps)
    product = tl.sum(total, axis=1) * scale
    if HAS_BIAS:
        product += tl.load(bias_ptr + rows, mask=is_row, other=0.0).to(tl.float32)
    # Rounded where separate kernels would have written it.
    product = product.to(out_ptr.dtype.element_ty).to(tl.float32)
    if GATE is not None:
        up = tl.sum(gated_total, axis=1) * scale
        if HAS_BIAS:
            up += tl.load(bias_ptr + num_rows + rows, mask=is_row, other=0.0).to(tl.float32)
        product = activate(product, GATE) * up.to(out_ptr.dtype.element_ty).to(tl.float32)
    if ADDS:
        product += tl.load(out_ptr + rows, mask=is_row, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows, product.to(out_ptr.dtype.element_ty), mask=is_row)


def gemv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    norm: tuple[torch.Tensor, float] | None = None,
    activation: str | None = None,
    add_to: torch.Tensor | None = None,
) -> torch.Tensor:
    """W x + b [1, out] for x [1, in] and weight [out, in].

    norm: (weight [in], eps) of an RMS norm of x. activation: the result is this, of the first half of the
    product, times the second half. add_to [1,
    out]: gets the product added, and is returned.
    """
    num_rows, size = weight.shape
    assert x.shape == (1, size) and x.stride(1) == 1 and weight.is_contiguous()
    if activation is not None:
        num_rows //= 2
    out = torch.empty(1, num_rows, dtype=x.dtype, device=x.device) if add_to is None else add_to
    rows = 1 if activation is not None else 2
    is_dependent = x.is_cuda
    gemv_kernel[(-(-num_rows // rows),)](
        x,
        weight,
        x if bias is None else bias,
        x if norm is None else norm[0],
        out,
        num_rows,
        0.0 if norm is None else norm[1],
        SIZE=size,
        ROWS=rows,
        BLOCK=min(SPAN, int(triton.next_power_of_2(size))),
        HAS_BIAS=bias is not None,
        HAS_NORM=norm is not None,
        GATE=activation,
        ADDS=add_to is not None,
        IS_DEPENDENT=is_dependent,
        num_warps=8 if activation is not None else 4,
        launch_pdl=is_dependent,
    )
    return out
