"""The product of a few rows with a weight matrix. It is memory-bound by the matrix, so the operations around it are
fused: the RMS norm of the input, the gate of a gated layer, the sum with the residual stream.

One row is multiplied with plain arithmetic, up to MAX_ROWS rows with tensor cores. Weights are of the type of x, or of
one byte, FP8 or int8, with scales. Sums are in float32. Intermediate
results are rounded as separate kernels would round them. Programs start to read their weights before the kernel that
computes x has ended (programmatic dependent launch).
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803, N806

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from seesay.kernels.gpu import has_dependent_launch
from seesay.kernels.sizes import power_of_2_from
from seesay.kernels.token_kernels import activate
from seesay.kernels.token_kernels import norm as rms_norm

MAX_ROWS = 32
"""Largest number of rows that do not slow down reading the weights."""
NUM_MULTIPROCESSORS = 132
"""Those of the GPU that tilings were measured on."""


class Tiling(NamedTuple):
    """A program computes `num_outputs` columns of the result, from `span` elements of each weight row at a time.

    num_stages: spans that are loaded at once where tensor cores multiply; 0 for plain arithmetic, for one row alone.
    num_parts: parts of the inputs that are multiplied side by side, each by a warp; more than one only for weights of
    one byte with a scale per output, without an activation.
    """

    num_outputs: int
    span: int
    num_warps: int
    num_stages: int = 0
    num_parts: int = 1


@triton.jit
def _load_span(places, first, columns, is_output, SIZE: tl.constexpr, SPAN: tl.constexpr):
    is_inside = is_output[:, None]
    if SIZE % SPAN != 0:
        is_inside = is_inside & (first + columns < SIZE)[None, :]
    return tl.load(places + first, mask=is_inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def one_row_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    norm_ptr,
    out_ptr,
    num_outputs,
    eps,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPAN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    GATE: tl.constexpr,
    ADDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program i computes elements i · OUTPUTS … of out [num_outputs] from x [SIZE] and W [num_outputs, SIZE].

    HAS_SCALE: W is FP8 or int8, and scale float32 [num_outputs] multiplies its rows. HAS_NORM: divide x by its root
    mean square and multiply it by `norm` [SIZE]. GATE, if given: W has 2 · num_outputs rows, and out is this activation
    of the first half times the second half. ADDS: add the result to out.
    """
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    columns = tl.arange(0, SPAN)
    is_output = outputs < num_outputs
    own = weight_ptr + outputs.to(tl.int64)[:, None] * SIZE + columns[None, :]
    other = own + tl.cast(num_outputs, tl.int64) * SIZE
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    weight = _load_span(own, 0, columns, is_output, SIZE, SPAN)
    if GATE is not None:
        up_weight = _load_span(other, 0, columns, is_output, SIZE, SPAN)
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
    scale = 1.0
    if HAS_NORM:
        everywhere = tl.arange(0, PADDED_SIZE)
        whole = tl.load(x_ptr + everywhere, mask=everywhere < SIZE, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(whole * whole, axis=0) / SIZE + eps)
    total = tl.zeros([OUTPUTS, SPAN], tl.float32)
    up_total = tl.zeros([OUTPUTS, SPAN], tl.float32)
    for first in range(0, SIZE, SPAN):
        is_element = first + columns < SIZE
        stored = tl.load(x_ptr + first + columns, mask=is_element, other=0.0)
        x = stored.to(tl.float32)
        if HAS_NORM:
            x = x * scale * tl.load(norm_ptr + first + columns, mask=is_element, other=0.0).to(tl.float32)
            x = x.to(stored.dtype).to(tl.float32)
        this = weight
        if SIZE > SPAN:
            weight = _load_span(own, first + SPAN, columns, is_output & (first + SPAN < SIZE), SIZE, SPAN)
        total += this.to(tl.float32) * x[None, :]
        if GATE is not None:
            this = up_weight
            if SIZE > SPAN:
                up_weight = _load_span(other, first + SPAN, columns, is_output & (first + SPAN < SIZE), SIZE, SPAN)
            up_total += this.to(tl.float32) * x[None, :]
    kind = out_ptr.dtype.element_ty
    product = tl.sum(total, axis=1)
    if HAS_SCALE:
        product *= tl.load(scale_ptr + outputs, mask=is_output, other=0.0)
    if HAS_BIAS:
        product += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)
    product = product.to(kind).to(tl.float32)
    if GATE is not None:
        up = tl.sum(up_total, axis=1)
        if HAS_SCALE:
            up *= tl.load(scale_ptr + num_outputs + outputs, mask=is_output, other=0.0)
        if HAS_BIAS:
            up += tl.load(bias_ptr + num_outputs + outputs, mask=is_output, other=0.0).to(tl.float32)
        product = activate(product, GATE) * up.to(kind).to(tl.float32)
    if ADDS:
        product += tl.load(out_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out_ptr + outputs, product.to(kind), mask=is_output)


@triton.jit
def few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    x_stride,
    out_stride,
    scale_stride,
    group_stride,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    GATE: tl.constexpr,
    ADDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Compute the same as `one_row_kernel` for x [num_rows, SIZE], num_rows ≤ ROWS, without a norm.

    GROUP, if given: the number of inputs, a multiple of SPAN, that share a scale of scale [num_outputs, groups].
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, SPAN)
    is_output, is_row = outputs < num_outputs, rows < num_rows
    own = weight_ptr + outputs.to(tl.int64)[:, None] * SIZE + columns[None, :]
    other = own + tl.cast(num_outputs, tl.int64) * SIZE
    inputs = x_ptr + rows[None, :] * x_stride + columns[:, None]
    scales = scale_ptr + outputs * scale_stride
    up_scales = scales + num_outputs * scale_stride
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    up_total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
    for first in tl.range(0, SIZE, SPAN, num_stages=STAGES):
        is_inside = is_row[None, :]
        if SIZE % SPAN != 0:
            is_inside = is_inside & (first + columns < SIZE)[:, None]
        x = tl.load(inputs + first, mask=is_inside, other=0.0)
        weight = _load_span(own, first, columns, is_output, SIZE, SPAN)
        if GROUP is None:
            total = tl.dot(weight.to(x.dtype), x, total)
        else:
            places = scales + first // GROUP * group_stride
            total += tl.dot(weight.to(x.dtype), x) * tl.load(places, mask=is_output, other=0.0)[:, None]
        if GATE is not None:
            weight = _load_span(other, first, columns, is_output, SIZE, SPAN)
            if GROUP is None:
                up_total = tl.dot(weight.to(x.dtype), x, up_total)
            else:
                places = up_scales + first // GROUP * group_stride
                up_total += tl.dot(weight.to(x.dtype), x) * tl.load(places, mask=is_output, other=0.0)[:, None]
    kind = out_ptr.dtype.element_ty
    if HAS_SCALE and GROUP is None:
        total *= tl.load(scales, mask=is_output, other=0.0)[:, None]
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
    product = total.to(kind).to(tl.float32)
    if GATE is not None:
        if HAS_SCALE and GROUP is None:
            up_total *= tl.load(up_scales, mask=is_output, other=0.0)[:, None]
        if HAS_BIAS:
            up_total += tl.load(bias_ptr + num_outputs + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
        product = activate(product, GATE) * up_total.to(kind).to(tl.float32)
    places = out_ptr + rows[None, :] * out_stride + outputs[:, None]
    is_inside = is_output[:, None] & is_row[None, :]
    if ADDS:
        product += tl.load(places, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(places, product.to(kind), mask=is_inside)


@triton.jit
def parted_inputs_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    x_stride,
    out_stride,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PADDED_OUTPUTS: tl.constexpr,
    SPAN: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """As `few_rows_kernel` for W of one byte per number with scale float32 [num_outputs], without a gate. Each warp
    multiplies a part of the inputs, so a program with few outputs has many reads under way. OUTPUTS need not be a power
    of two: then programs come out even over the multiprocessors.
    """
    PART: tl.constexpr = (SIZE + PARTS * SPAN - 1) // (PARTS * SPAN) * SPAN
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    members = tl.arange(0, PADDED_OUTPUTS)
    outputs = tl.program_id(0) * OUTPUTS + members
    rows = tl.arange(0, ROWS)
    columns = (tl.arange(0, PARTS) * PART)[:, None] + tl.arange(0, SPAN)[None, :]
    is_output, is_row = (members < OUTPUTS) & (outputs < num_outputs), rows < num_rows
    own = weight_ptr + outputs.to(tl.int64)[None, :, None] * SIZE + columns[:, None, :]
    inputs = x_ptr + rows[None, None, :] * x_stride + columns[:, :, None]
    total = tl.zeros([PARTS, PADDED_OUTPUTS, ROWS], tl.float32)
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
    for first in tl.range(0, PART, SPAN, num_stages=STAGES):
        is_x, is_weight = is_row[None, None, :], is_output[None, :, None]
        if SIZE != PART * PARTS:
            is_x = is_x & (first + columns < SIZE)[:, :, None]
            is_weight = is_weight & (first + columns < SIZE)[:, None, :]
        x = tl.load(inputs + first, mask=is_x, other=0.0)
        weight = tl.load(own + first, mask=is_weight, other=0.0, eviction_policy="evict_first")
        total = tl.dot(weight.to(x.dtype), x, total)
    product = tl.sum(total, axis=0) * tl.load(scale_ptr + outputs, mask=is_output, other=0.0)[:, None]
    if HAS_BIAS:
        product += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
    kind = out_ptr.dtype.element_ty
    product = product.to(kind).to(tl.float32)
    places = out_ptr + rows[None, :] * out_stride + outputs[:, None]
    is_inside = is_output[:, None] & is_row[None, :]
    if ADDS:
        product += tl.load(places, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(places, product.to(kind), mask=is_inside)


@cache
def _tile_one_row(num_outputs: int, size: int, is_gated: bool, num_bytes: int) -> Tiling:
    """Return the tiling for one row, as measured on an H200 with the sizes of a 7B backbone: 3.4 ms for the products
    and norms of one token, 4.5 TB/s in the larger ones. Plain arithmetic cannot keep up with numbers of one byte: for
    those of gated layers and of many inputs tensor cores multiply, at 3.6 to 3.9 TB/s in place of 2.2 to 3.0."""
    num_warps, num_stages, outputs = 4, 0, 2
    if num_bytes == 1 and not is_gated and size > 8192:
        tiling = _tile_parted(8, num_outputs, size)
        if tiling is not None:
            return tiling
    if num_bytes == 1 and is_gated:
        span, num_warps, num_stages, outputs = 256, 2, 4, 32
    elif is_gated or num_outputs > 65536 or (num_bytes == 1 and size <= 8192):
        span, outputs = 4096, 4 if num_bytes == 1 and num_outputs <= 65536 else 2
    else:
        span, num_warps = 2048 if num_bytes == 1 else 1024, 2
    span = min(span, max(16, power_of_2_from(size)))
    return Tiling(num_outputs=outputs, span=span, num_warps=num_warps, num_stages=num_stages)


@cache
def _tile_few_rows(num_rows: int, num_outputs: int, size: int, is_gated: bool, can_part: bool) -> Tiling:
    """Return the tiling for a few rows, as measured on an H200 with 8 and 32 rows. can_part: whether
    `parted_inputs_kernel` has such products."""
    parted = _tile_parted(num_rows, num_outputs, size) if can_part and not is_gated else None
    if parted is not None:
        return parted
    if num_outputs > 65536:
        tiling = Tiling(num_outputs=64, span=128, num_warps=4, num_stages=3 if num_rows <= 8 else 4)
    elif num_rows <= 8:
        tiling = Tiling(num_outputs=16, span=256, num_warps=1, num_stages=4)
    elif is_gated:
        tiling = Tiling(num_outputs=32, span=128, num_warps=2, num_stages=4)
    elif size > 8192:
        tiling = Tiling(num_outputs=16, span=512, num_warps=2, num_stages=3)
    else:
        tiling = Tiling(num_outputs=64, span=128, num_warps=4, num_stages=4)
    return tiling._replace(span=max(16, min(tiling.span, power_of_2_from(size))))


def _tile_parted(num_rows: int, num_outputs: int, size: int) -> Tiling | None:
    """Return the tiling of `parted_inputs_kernel`, or None where another kernel is as fast: with so many programs per
    multiprocessor of an H200, which then run in turns.

    It was measured with FP8, 3,584 and 4,608 outputs, and inputs in bfloat16: 68 MB of weights take 30 µs with one row,
    where plain arithmetic takes 31; with 8 rows 33 in place of 69; with 32 rows 46 in place of 73. int8 has the same
    tilings by rule. A program has as many outputs as leave the busiest multiprocessor least to do.
    """

    def count_turns(outputs: int) -> int:
        num_programs = -(-num_outputs // outputs)
        return -(-num_programs // NUM_MULTIPROCESSORS)

    def choose(padded: int) -> int:
        return min(range(padded, padded * 3 // 4 - 1, -1), key=lambda outputs: count_turns(outputs) * outputs)

    most_turns = 3 if num_rows <= 8 else 2
    outputs = choose(16)
    if num_rows > 8 and count_turns(outputs) > most_turns:
        outputs = choose(32)
    turns = count_turns(outputs)
    if size < 2048 or turns > most_turns:
        return None
    num_stages = 6 if turns <= 2 else 4  # what finds room beside the other programs
    if num_rows > 8:
        num_stages = 3
    return Tiling(num_outputs=outputs, span=128, num_warps=4, num_stages=num_stages, num_parts=4)


def _pick_type(x_type: torch.dtype, weight_type: torch.dtype) -> torch.dtype:
    """Return the type in which tensor cores multiply a norm. GPUs turn FP8 into float16 at a quarter of the cost of
    bfloat16, and a norm is far within its range: at most the root of its size times its weight. Nothing bounds other
    inputs: they stay in their own type, although one row of 18,944 inputs took 19 µs in float16 and takes 30."""
    return torch.float16 if weight_type == torch.float8_e4m3fn and x_type.itemsize == 2 else x_type


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    scale: torch.Tensor | None = None,
    group_size: int | None = None,
    norm: tuple[torch.Tensor, float] | None = None,
    activation: str | None = None,
    add_to: torch.Tensor | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Return x Wᵀ + b [N, out] for x [N, in], N ≤ MAX_ROWS, and weight [out, in]. N > 1 requires 16-bit types.

    scale: for a weight in FP8 or int8, float32 [out], which multiplies its rows; or [out, groups of `group_size`
    inputs]. norm: (weight [in], eps) of an RMS norm of x.
    activation: return the activation of the first half of the product times the second half. add_to [N, out]: add the
    product to it, and return it. tiling: by default one that fits the sizes.
    """
    num_outputs, size = weight.shape
    num_rows = len(x)
    assert x.shape == (num_rows, size) and x.stride(1) == 1 and weight.is_contiguous() and 0 < num_rows <= MAX_ROWS
    if activation is not None:
        num_outputs //= 2
    out = x.new_empty(num_rows, num_outputs) if add_to is None else add_to
    assert out.stride(1) == 1
    is_dependent = has_dependent_launch(x.get_device())
    options = {
        "HAS_BIAS": bias is not None,
        "HAS_SCALE": scale is not None,
        "GATE": activation,
        "ADDS": add_to is not None,
        "IS_DEPENDENT": is_dependent,
        "launch_pdl": is_dependent,
    }
    is_gated, padded_rows = activation is not None, max(8, power_of_2_from(num_rows))
    if tiling is None and num_rows == 1 and group_size is None:
        tiling = _tile_one_row(num_outputs, size, is_gated, weight.itemsize if x.itemsize == 2 else x.itemsize)
    elif tiling is None:
        can_part = weight.itemsize == 1 and scale is not None and group_size is None
        tiling = _tile_few_rows(padded_rows, num_outputs, size, is_gated, can_part)
    if group_size is not None:
        tiling = tiling._replace(span=min(tiling.span, group_size))
    if not tiling.num_stages:
        one_row_kernel[(-(-num_outputs // tiling.num_outputs),)](
            x,
            weight,
            x if bias is None else bias,
            x if scale is None else scale,
            x if norm is None else norm[0],
            out,
            num_outputs,
            0.0 if norm is None else norm[1],
            SIZE=size,
            PADDED_SIZE=power_of_2_from(size),
            OUTPUTS=tiling.num_outputs,
            SPAN=tiling.span,
            HAS_NORM=norm is not None,
            num_warps=tiling.num_warps,
            **options,
        )
        return out
    if norm is not None:
        x = rms_norm(x, None, *norm, dtype=_pick_type(x.dtype, weight.dtype))
    if tiling.num_parts > 1:
        assert scale is not None and group_size is None and activation is None
        del options["GATE"], options["HAS_SCALE"]
        parted_inputs_kernel[(-(-num_outputs // tiling.num_outputs),)](
            x,
            weight,
            x if bias is None else bias,
            scale,
            out,
            num_rows,
            num_outputs,
            x.stride(0),
            out.stride(0),
            SIZE=size,
            ROWS=padded_rows,
            OUTPUTS=tiling.num_outputs,
            PADDED_OUTPUTS=power_of_2_from(tiling.num_outputs),
            SPAN=tiling.span,
            PARTS=tiling.num_parts,
            STAGES=tiling.num_stages,
            num_warps=tiling.num_warps,
            **options,
        )
        return out
    few_rows_kernel[(-(-num_outputs // tiling.num_outputs),)](
        x,
        weight,
        x if bias is None else bias,
        x if scale is None else scale,
        out,
        num_rows,
        num_outputs,
        x.stride(0),
        out.stride(0),
        0 if scale is None else scale.stride(0),
        0 if group_size is None or scale is None else scale.stride(1),
        SIZE=size,
        ROWS=padded_rows,
        OUTPUTS=tiling.num_outputs,
        SPAN=tiling.span,
        GROUP=group_size,
        STAGES=tiling.num_stages,
        num_warps=tiling.num_warps,
        **options,
    )
    return out
