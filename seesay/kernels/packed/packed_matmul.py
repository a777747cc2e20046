"""The product of rows with a matrix of 4-bit or 8-bit integers, which are multiplied out on the way: see
`packed_numbers`. Each plane of a tile is multiplied by tensor cores with its own columns of x. Sums are in float32.

Up to MAX_FUSED_ROWS rows, the time is that of reading the weights, so the operations around the product are fused as in
`few_row_matmul`, and blocks of inputs are divided among the warps of a program. More rows are cut into tiles.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.gpu import has_dependent_launch, has_large_shared_memory, nvidia_options
from seesay.kernels.packed.packed_numbers import PackedTensors, find_group, split_factors, unpack_planes
from seesay.kernels.packed.packed_tilings import (
    MAX_FUSED_ROWS,
    MAX_GATED_ROWS,
    FewRowTiling,
    Tiling,
    tile_few_rows,
    tile_rows,
)
from seesay.kernels.sizes import power_of_2_from
from seesay.kernels.token_kernels import act_and_mul, multiply_gate
from seesay.kernels.token_kernels import norm as rms_norm

NVIDIA_ALONE = True
"""It prefetches by PTX."""


@triton.jit
def _prefetch(places, num_blocks, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """Bring the first COUNT blocks of rows of words, which begin at places [OUTPUTS], into the second-level cache."""
    blocks = tl.minimum(tl.arange(0, COUNT), num_blocks - 1)
    addresses = (places[:, None] + blocks[None, :] * WIDTH).to(tl.int64)
    code: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(code, "=r,l", [addresses], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _add_group(
    total,
    planes,
    xs,
    sums,
    factors,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Return total [SPLITS, OUTPUTS, ROWS] plus the products of COUNT planes [SPLITS, OUTPUTS, WIDTH] from FIRST on,
    which have the same factors [SPLITS, OUTPUTS], with xs, one [SPLITS, WIDTH, ROWS] per plane, of which `sums` are the
    sums. These, times the zero points, leave the product once, instead of every number its zero point."""
    product = tl.dot(planes[FIRST], xs[FIRST])
    for plane in tl.static_range(FIRST + 1, FIRST + COUNT):
        product = tl.dot(planes[plane], xs[plane], product)
    scales, zeros = split_factors(factors, xs[0].dtype)
    return total + (product - zeros[:, :, None] * sums) * scales[:, :, None]


@triton.jit(do_not_specialize=["num_rows"])
def packed_few_rows_kernel(
    x_ptr,
    words_ptr,
    factor_ptr,
    order_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    x_stride,
    out_stride,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_ONE_ROW: tl.constexpr,
    JOINED: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCHED: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATE: tl.constexpr,
    ADDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Program i computes columns i · OUTPUTS … of out [num_rows, num_outputs] from x [num_rows, SIZE], num_rows ≤ ROWS.

    HAS_ORDER: input k of the matrix is column order[k] of x. GATE, if given: the matrix has 2 · num_outputs rows, and
    out is this activation of the first half times the second half. ADDS: add the result to out.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    planes: tl.constexpr = 16 // BITS
    num_blocks: tl.constexpr = (SIZE + WIDTH * planes - 1) // (WIDTH * planes)
    last: tl.constexpr = (SIZE - 1) // GROUP
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows, columns, splits = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, SPLITS)
    is_output, is_row = outputs < num_outputs, rows < num_rows
    num_factors = num_outputs if GATE is None else 2 * num_outputs
    kind: tl.constexpr = x_ptr.dtype.element_ty
    ones = tl.full([SPLITS, OUTPUTS, WIDTH], 1.0, kind)
    own = words_ptr + outputs.to(tl.int64)[None, :, None] * (num_blocks * WIDTH) + columns[None, None, :]
    other = own + tl.cast(num_outputs, tl.int64) * (num_blocks * WIDTH)
    total = tl.zeros([SPLITS, OUTPUTS, ROWS], tl.float32)
    up_total = tl.zeros([SPLITS, OUTPUTS, ROWS], tl.float32)
    if IS_DEPENDENT:
        if PREFETCHED > 0:
            heads = words_ptr + tl.minimum(outputs, num_outputs - 1).to(tl.int64) * (num_blocks * WIDTH)
            _prefetch(heads, num_blocks, PREFETCHED, WIDTH)
            if GATE is not None:
                _prefetch(heads + tl.cast(num_outputs, tl.int64) * (num_blocks * WIDTH), num_blocks, PREFETCHED, WIDTH)
        tl.extra.cuda.gdc_wait()
    for first in tl.range(0, num_blocks, SPLITS, num_stages=STAGES):
        blocks = first + splits
        is_inside = is_output[None, :] & (blocks < num_blocks)[:, None]
        starts = (blocks * WIDTH)[:, None, None]
        words = tl.load(own + starts, mask=is_inside[:, :, None], other=0, eviction_policy="evict_first")
        xs = ()
        for plane in tl.static_range(planes):
            inputs = ((blocks * planes + plane) * WIDTH)[:, None] + columns[None, :]
            is_input = inputs < SIZE
            if HAS_ORDER:
                inputs = tl.load(order_ptr + inputs, mask=is_input, other=0)
            if IS_ONE_ROW:  # in all columns of the product, of which the first is stored
                x = tl.load(x_ptr + inputs, mask=is_input, other=0.0)
                x = tl.broadcast_to(x[:, :, None], [SPLITS, WIDTH, ROWS])
            else:
                x_places = x_ptr + rows[None, None, :] * x_stride + inputs[:, :, None]
                x = tl.load(x_places, mask=is_row[None, None, :] & is_input[:, :, None], other=0.0)
            xs = xs + (x,)  # noqa: RUF005  # Triton has no starred tuples
        numbers = unpack_planes(words, kind, BITS, IS_COMPILED)
        if GATE is not None:
            words = tl.load(other + starts, mask=is_inside[:, :, None], other=0, eviction_policy="evict_first")
            ups = unpack_planes(words, kind, BITS, IS_COMPILED)
        for plane in tl.static_range(0, planes, JOINED):
            sums = tl.dot(ones, xs[plane])
            for same in tl.static_range(plane + 1, plane + JOINED):
                sums = tl.dot(ones, xs[same], sums)
            places = find_group(blocks, plane, planes, WIDTH, GROUP, last)[:, None] * num_factors + outputs[None, :]
            factors = tl.load(factor_ptr + places, mask=is_inside, other=0)
            total = _add_group(total, numbers, xs, sums, factors, plane, JOINED)
            if GATE is not None:
                factors = tl.load(factor_ptr + num_outputs + places, mask=is_inside, other=0)
                up_total = _add_group(up_total, ups, xs, sums, factors, plane, JOINED)
    product = tl.sum(total, axis=0)
    if HAS_BIAS:
        product += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
    product = product.to(out_ptr.dtype.element_ty).to(tl.float32)
    if GATE is not None:
        up = tl.sum(up_total, axis=0)
        if HAS_BIAS:
            up += tl.load(bias_ptr + num_outputs + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
        product = multiply_gate(product, up.to(out_ptr.dtype.element_ty).to(tl.float32), GATE)
    target = out_ptr + rows[None, :] * out_stride + outputs[:, None]
    is_inside = is_output[:, None] & is_row[None, :]
    if ADDS:
        product += tl.load(target, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(target, product.to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit(do_not_specialize=["num_rows"])
def packed_tiles_kernel(
    x_ptr,
    words_ptr,
    factor_ptr,
    order_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    x_stride,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Program (i, j) computes rows i · ROWS … and columns j · OUTPUTS … of out [num_rows, num_outputs], which is
    contiguous, from x [num_rows, SIZE], with COLUMNS ≤ WIDTH words of each output at a time."""
    planes: tl.constexpr = 16 // BITS
    num_blocks: tl.constexpr = (SIZE + WIDTH * planes - 1) // (WIDTH * planes)
    last: tl.constexpr = (SIZE - 1) // GROUP
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    columns = tl.arange(0, COLUMNS)
    is_output, is_row = outputs < num_outputs, rows < num_rows
    own = words_ptr + outputs.to(tl.int64)[:, None] * (num_blocks * WIDTH) + columns[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    kind = out_ptr.dtype.element_ty
    for step in tl.range(0, num_blocks * (WIDTH // COLUMNS), num_stages=STAGES):
        block = step // (WIDTH // COLUMNS)
        words = tl.load(own + step * COLUMNS, mask=is_output[:, None], other=0)
        numbers = unpack_planes(words, kind, BITS, IS_COMPILED)
        for plane in tl.static_range(planes):
            inputs = (block * planes + plane) * WIDTH + step % (WIDTH // COLUMNS) * COLUMNS + columns
            is_input = is_row[None, :]
            if SIZE % (WIDTH * planes) != 0:
                is_input = is_input & (inputs < SIZE)[:, None]
            if HAS_ORDER:
                inputs = tl.load(order_ptr + inputs, mask=inputs < SIZE, other=0)
            x = tl.load(x_ptr + rows[None, :] * x_stride + inputs[:, None], mask=is_input, other=0.0)
            places = find_group(block, plane, planes, WIDTH, GROUP, last) * num_outputs + outputs
            scales, zeros = split_factors(tl.load(factor_ptr + places, mask=is_output, other=0), kind)
            exact = (numbers[plane] - zeros.to(kind)[:, None]) * scales.to(kind)[:, None]
            total = tl.dot(exact, x, total)
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
    target = out_ptr + rows[None, :] * num_outputs + outputs[:, None]
    tl.store(target, total.to(kind), mask=is_output[:, None] & is_row[None, :])


def multiply_few(
    x: torch.Tensor,
    packed: PackedTensors,
    bias: torch.Tensor | None,
    *,
    norm: tuple[torch.Tensor, float] | None = None,
    activation: str | None = None,
    add_to: torch.Tensor | None = None,
    tiling: FewRowTiling | None = None,
) -> torch.Tensor:
    """Return x Wᵀ + b [N, out] for x [N, in], 1 ≤ N ≤ MAX_FUSED_ROWS, of a 16-bit type.

    norm: (weight [in], eps) of an RMS norm of x. activation: return the activation of the first half of the product
    times the second half. add_to [N, out]: add the product to it, and return it.
    """
    num_rows, num_outputs = len(x), len(packed.words)
    assert 0 < num_rows <= MAX_FUSED_ROWS and x.stride(1) == 1 and x.shape[1] >= packed.num_inputs
    assert x.itemsize == 2 and packed.words.is_contiguous() and (norm is None or x.shape[1] == packed.num_inputs)
    if norm is not None:
        x = rms_norm(x, None, *norm)  # fused, it would be computed for each tile of x anew, and took longer
    if activation is not None:
        num_outputs //= 2
        if tiling is None and add_to is None and num_rows > MAX_GATED_ROWS:
            return act_and_mul(multiply_tiles(x, packed, bias), activation)
    out = x.new_empty(num_rows, num_outputs) if add_to is None else add_to
    assert out.stride(1) == 1
    is_dependent = has_dependent_launch(x.get_device())
    padded_rows = max(8, power_of_2_from(num_rows))
    if tiling is None:
        has_large_memory = has_large_shared_memory(x.get_device())
        tiling = tile_few_rows(num_rows, num_outputs, activation is not None, has_large_memory)
    packed_few_rows_kernel[(-(-num_outputs // tiling.num_outputs),)](
        x,
        packed.words,
        packed.factors,
        packed.words if packed.order is None else packed.order,
        x if bias is None else bias,
        out,
        num_rows,
        num_outputs,
        x.stride(0),
        out.stride(0),
        ROWS=padded_rows,
        OUTPUTS=tiling.num_outputs,
        SPLITS=tiling.num_warps,
        IS_ONE_ROW=num_rows == 1,
        JOINED=packed.num_joined,
        STAGES=tiling.num_stages,
        PREFETCHED=tiling.num_prefetched,
        HAS_BIAS=bias is not None,
        GATE=activation,
        ADDS=add_to is not None,
        IS_DEPENDENT=is_dependent,
        num_warps=tiling.num_warps,
        **nvidia_options(launch_pdl=is_dependent),
        **packed.options,
    )
    return out


def multiply_tiles(
    x: torch.Tensor, packed: PackedTensors, bias: torch.Tensor | None, *, tiling: Tiling | None = None
) -> torch.Tensor:
    """Return x Wᵀ + b [N, out] for x [N, in], N ≥ 1, of a 16-bit type."""
    num_rows, num_outputs = len(x), len(packed.words)
    assert num_rows > 0 and x.stride(1) == 1 and x.itemsize == 2 and x.shape[1] >= packed.num_inputs
    if tiling is None:
        tiling = tile_rows(num_rows, num_outputs, has_large_shared_memory(x.get_device()))
    out = x.new_empty(num_rows, num_outputs)
    packed_tiles_kernel[(-(-num_rows // tiling.num_rows), -(-num_outputs // tiling.num_outputs))](
        x,
        packed.words,
        packed.factors,
        packed.words if packed.order is None else packed.order,
        x if bias is None else bias,
        out,
        num_rows,
        num_outputs,
        x.stride(0),
        ROWS=tiling.num_rows,
        OUTPUTS=tiling.num_outputs,
        COLUMNS=min(tiling.num_columns, packed.width),
        STAGES=tiling.num_stages,
        HAS_BIAS=bias is not None,
        num_warps=tiling.num_warps,
        **packed.options,
    )
    return out
