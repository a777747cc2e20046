"""Kernels of `few_row_matmul`: the product of one row, or of a few, with a weight matrix and what is fused with it."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from seesay.kernels.token_kernels import multiply_gate

NVIDIA_ALONE = True
"""They widen numbers and prefetch by PTX."""

_WIDEN_FP8 = tl.constexpr("""{
    .reg .b32 low, high, first, last, power, zero;
    shl.b32 low, $2, 4;
    and.b32 low, low, 0xf0f0f0f0;
    shr.u32 high, $2, 4;
    and.b32 high, high, 0x07070707;
    lop3.b32 high, $2, 0x80808080, high, 0xea;
    prmt.b32 first, low, high, 0x5140;
    prmt.b32 last, low, high, 0x7362;
    mov.b32 power, 0x7b807b80;
    mov.b32 zero, 0x80008000;
    fma.rn.bf16x2 $0, first, power, zero;
    fma.rn.bf16x2 $1, last, power, zero;
}""")
"""Four numbers s·eeee·mmm of FP8 become s·0000eeee·mmm0000 of bfloat16, which is 2⁻¹²⁰ of their value, subnormal ones
included, times 2¹²⁰."""


@triton.jit
def widen(weight, KIND: tl.constexpr, IS_COMPILED: tl.constexpr):
    """Return weights, which are not NaN, in the type of the rows. Hopper has an instruction that makes two numbers of
    FP8 float16, but makes bfloat16 of these one by one, which takes longer than to read the weights."""
    is_wide: tl.constexpr = tl.bfloat16 == KIND
    if IS_COMPILED and is_wide and weight.dtype == tl.float8e4nv:
        numbers = weight.to(tl.int8, bitcast=True)
        return tl.inline_asm_elementwise(_WIDEN_FP8, "=r,=r,r", [numbers], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        return weight.to(KIND)


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
    term_ptr,
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
    HAS_TERM: tl.constexpr,
):
    """Program i computes elements i · OUTPUTS … of out [num_outputs] from x [SIZE] and W [num_outputs, SIZE].

    HAS_SCALE: W is FP8 or int8, and scale float32 [num_outputs] multiplies its rows. HAS_NORM: divide x by its root
    mean square and multiply it by `norm` [SIZE]. GATE, if given: W has 2 · num_outputs rows, and out is this activation
    of the first half times the second half. ADDS: add the result to out. HAS_TERM: add `term`, float32 of
    as many numbers as W has rows, to the rounded product; x is known when the kernel starts, the term when the one
    before has ended.
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
    if IS_DEPENDENT and not HAS_TERM:
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
    if IS_DEPENDENT and HAS_TERM:
        tl.extra.cuda.gdc_wait()
    product = tl.sum(total, axis=1)
    if HAS_SCALE:
        product *= tl.load(scale_ptr + outputs, mask=is_output, other=0.0)
    if HAS_BIAS:
        product += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)
    product = product.to(kind).to(tl.float32)
    if HAS_TERM:
        product += tl.load(term_ptr + outputs, mask=is_output, other=0.0)
        product = product.to(kind).to(tl.float32)
    if GATE is not None:
        up = tl.sum(up_total, axis=1)
        if HAS_SCALE:
            up *= tl.load(scale_ptr + num_outputs + outputs, mask=is_output, other=0.0)
        if HAS_BIAS:
            up += tl.load(bias_ptr + num_outputs + outputs, mask=is_output, other=0.0).to(tl.float32)
        up = up.to(kind).to(tl.float32)
        if HAS_TERM:
            up += tl.load(term_ptr + num_outputs + outputs, mask=is_output, other=0.0)
            up = up.to(kind).to(tl.float32)
        product = multiply_gate(product, up, GATE)
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
    IS_COMPILED: tl.constexpr,
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
            total = tl.dot(widen(weight, x.dtype, IS_COMPILED), x, total)
        else:
            places = scales + first // GROUP * group_stride
            total += (
                tl.dot(widen(weight, x.dtype, IS_COMPILED), x) * tl.load(places, mask=is_output, other=0.0)[:, None]
            )
        if GATE is not None:
            weight = _load_span(other, first, columns, is_output, SIZE, SPAN)
            if GROUP is None:
                up_total = tl.dot(widen(weight, x.dtype, IS_COMPILED), x, up_total)
            else:
                places = up_scales + first // GROUP * group_stride
                up_total += (
                    tl.dot(widen(weight, x.dtype, IS_COMPILED), x) * tl.load(places, mask=is_output, other=0.0)[:, None]
                )
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
        product = multiply_gate(product, up_total.to(kind).to(tl.float32), GATE)
    places = out_ptr + rows[None, :] * out_stride + outputs[:, None]
    is_inside = is_output[:, None] & is_row[None, :]
    if ADDS:
        product += tl.load(places, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(places, product.to(kind), mask=is_inside)


@triton.jit
def prefetch(places, NUM_BYTES: tl.constexpr):
    """Bring NUM_BYTES, a multiple of 16, from each of these places on into the second-level cache."""
    sizes = tl.full(places.shape, NUM_BYTES, tl.int32)
    code: tl.constexpr = "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(code, "=r,l,r", [places.to(tl.int64), sizes], dtype=tl.int32, is_pure=False, pack=1)


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
    PREFETCHED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """As `few_rows_kernel` for W of one byte per number with scale float32 [num_outputs], without a gate. Each warp
    multiplies a part of the inputs, so a program with few outputs has many reads under way. OUTPUTS need not be a power
    of two: then programs come out even over the multiprocessors.

    PREFETCHED: the bytes of each part of a row of W that are brought into the cache before x is known.
    """
    PART: tl.constexpr = (SIZE + PARTS * SPAN - 1) // (PARTS * SPAN) * SPAN
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    members = tl.arange(0, PADDED_OUTPUTS)
    outputs = tl.program_id(0) * OUTPUTS + members
    rows = tl.arange(0, ROWS)
    parts = tl.arange(0, PARTS) * PART
    columns = parts[:, None] + tl.arange(0, SPAN)[None, :]
    is_output, is_row = (members < OUTPUTS) & (outputs < num_outputs), rows < num_rows
    own = weight_ptr + outputs.to(tl.int64)[None, :, None] * SIZE + columns[:, None, :]
    inputs = x_ptr + rows[None, None, :] * x_stride + columns[:, :, None]
    total = tl.zeros([PARTS, PADDED_OUTPUTS, ROWS], tl.float32)
    if IS_DEPENDENT:
        if PREFETCHED > 0:
            own_rows = tl.minimum(tl.minimum(outputs, tl.program_id(0) * OUTPUTS + OUTPUTS - 1), num_outputs - 1)
            heads = weight_ptr + own_rows.to(tl.int64)[None, :] * SIZE + parts[:, None]
            prefetch(heads, PREFETCHED)
        tl.extra.cuda.gdc_wait()
    for first in tl.range(0, PART, SPAN, num_stages=STAGES):
        is_x, is_weight = is_row[None, None, :], is_output[None, :, None]
        if SIZE != PART * PARTS:
            is_x = is_x & (first + columns < SIZE)[:, :, None]
            is_weight = is_weight & (first + columns < SIZE)[:, None, :]
        x = tl.load(inputs + first, mask=is_x, other=0.0)
        weight = tl.load(own + first, mask=is_weight, other=0.0, eviction_policy="evict_first")
        total = tl.dot(widen(weight, x.dtype, IS_COMPILED), x, total)
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
