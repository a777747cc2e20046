"""Kernels of `experts`: the products of tokens with the weights of their experts.

An *assignment* is a token and one of its experts; those of token t are t · CHOSEN …. Sorted assignments lie expert by
expert, and a *block* is up to ROWS of one expert's.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from seesay.kernels.few_rows.few_row_kernels import widen
from seesay.kernels.token_kernels import activate, multiply_gate


@triton.jit
def _find_block(starts_ptr, block, NUM: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """Return the expert of a block, NUM or more where there is no such block, and the places of its first assignment
    and behind its last one among the sorted ones."""
    experts = tl.arange(0, PADDED)
    is_expert = experts < NUM
    starts = tl.load(starts_ptr + experts, mask=is_expert, other=0)
    stops = tl.load(starts_ptr + 1 + experts, mask=is_expert, other=0)
    num_blocks = (stops - starts + ROWS - 1) // ROWS
    expert = tl.sum((tl.cumsum(num_blocks, axis=0) <= block).to(tl.int32), axis=0)
    num_before = tl.sum(tl.where(experts < expert, num_blocks, 0), axis=0)
    start = tl.sum(tl.where(experts == expert, starts, 0), axis=0)
    stop = tl.sum(tl.where(experts == expert, stops, 0), axis=0)
    first = start + (block - num_before) * ROWS
    return expert, first, tl.minimum(stop, first + ROWS)


@triton.jit
def _find_rows(order_ptr, places, is_row, CHOSEN: tl.constexpr, GATHERS: tl.constexpr):
    """Return the rows of x and of the output that belong to these places among the sorted assignments. GATHERS: x has
    a row for each token and the output one for each place; otherwise x has one for each place and the output one for
    each assignment."""
    assignments = tl.load(order_ptr + places, mask=is_row, other=0)
    if GATHERS:
        return assignments // CHOSEN, places
    else:
        return places, assignments


@triton.jit
def _finish(total, up_total, kind: tl.constexpr, GATE: tl.constexpr):
    """Return the product, rounded, or the activation of the gate times the other half, or of the product alone."""
    product = total.to(kind).to(tl.float32)
    if GATE == "relu2":
        product = activate(product, GATE)
    elif GATE is not None:
        product = multiply_gate(product, up_total.to(kind).to(tl.float32), GATE)
    return product.to(kind)


@triton.jit
def _load_weight(places, first, columns, is_output, SIZE: tl.constexpr, SPAN: tl.constexpr):
    is_inside = is_output[:, None]
    if SIZE % SPAN != 0:
        is_inside = is_inside & (first + columns < SIZE)[None, :]
    return tl.load(places + first, mask=is_inside, other=0.0)


@triton.jit
def _over_rows(values, ROWS_FIRST: tl.constexpr):
    """Return values of rows as a tile of one output."""
    if ROWS_FIRST:
        return values[:, None]
    else:
        return values[None, :]


@triton.jit
def _over_outputs(values, ROWS_FIRST: tl.constexpr):
    """Return values of outputs as a tile of one row."""
    return _over_rows(values, not ROWS_FIRST)


@triton.jit
def _multiply(
    total, weight, x, scales, is_output, GROUP: tl.constexpr, ROWS_FIRST: tl.constexpr, IS_COMPILED: tl.constexpr
):
    """Add the product of weight [outputs, span] and x to the total. x and the total have their rows first or last."""
    weight = widen(weight, x.dtype, IS_COMPILED)
    if GROUP is None:
        if ROWS_FIRST:
            return tl.dot(x, tl.trans(weight), total, input_precision="ieee")
        else:
            return tl.dot(weight, x, total, input_precision="ieee")
    else:
        scale = _over_outputs(tl.load(scales, mask=is_output, other=0.0), ROWS_FIRST)
        if ROWS_FIRST:
            return total + tl.dot(x, tl.trans(weight), input_precision="ieee") * scale
        else:
            return total + tl.dot(weight, x, input_precision="ieee") * scale


@triton.jit
def _complete(
    total, bias, scales, is_output, GROUP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr,
    ROWS_FIRST: tl.constexpr,
):  # fmt: skip
    if HAS_SCALE and GROUP is None:
        total *= _over_outputs(tl.load(scales, mask=is_output, other=0.0), ROWS_FIRST)
    if HAS_BIAS:
        total += _over_outputs(tl.load(bias, mask=is_output, other=0.0).to(tl.float32), ROWS_FIRST)
    return total


@triton.jit
def grouped_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    order_ptr,
    starts_ptr,
    out_ptr,
    num_outputs,
    x_stride,
    scale_stride,
    group_stride,
    SIZE: tl.constexpr,
    NUM: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    GATE: tl.constexpr,
    GATHERS: tl.constexpr,
    ROWS_FIRST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Program (i, b) computes outputs i · OUTPUTS … of block b with weights [NUM · outputs, SIZE].

    GATE, if given: each expert has 2 · num_outputs rows of weights, and out is this activation of the first half times
    the second half; with "relu2", it has one half, and out is the activation of that. GROUP: see
    `few_row_kernels.few_rows_kernel`. GATHERS: see `_find_rows`. ROWS_FIRST: tiles of the result have rows as their
    first axis, which tensor cores take 64 at a time; where blocks have fewer, outputs are.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    expert, first_place, stop = _find_block(starts_ptr, tl.program_id(1), NUM, PADDED, ROWS)
    if expert >= NUM:
        return
    places = first_place + tl.arange(0, ROWS)
    is_row = places < stop
    x_rows, out_rows = _find_rows(order_ptr, places, is_row, CHOSEN, GATHERS)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    columns = tl.arange(0, SPAN)
    is_output = outputs < num_outputs
    HAS_UP: tl.constexpr = GATE is not None and GATE != "relu2"
    weight_rows = outputs + expert * (2 * num_outputs if HAS_UP else num_outputs)
    own = weight_ptr + weight_rows.to(tl.int64)[:, None] * SIZE + columns[None, :]
    other = own + tl.cast(num_outputs, tl.int64) * SIZE
    inputs = x_ptr + _over_rows(x_rows.to(tl.int64) * x_stride, ROWS_FIRST) + _over_outputs(columns, ROWS_FIRST)
    scales = scale_ptr + weight_rows.to(tl.int64) * scale_stride
    up_scales = scales + num_outputs * scale_stride
    is_x = _over_rows(is_row, ROWS_FIRST)
    total = tl.zeros([ROWS, OUTPUTS] if ROWS_FIRST else [OUTPUTS, ROWS], tl.float32)
    up_total = tl.zeros([ROWS, OUTPUTS] if ROWS_FIRST else [OUTPUTS, ROWS], tl.float32)
    for first in tl.range(0, SIZE, SPAN, num_stages=STAGES):
        is_inside = is_x
        if SIZE % SPAN != 0:
            is_inside = is_inside & _over_outputs(first + columns < SIZE, ROWS_FIRST)
        x = tl.load(inputs + first, mask=is_inside, other=0.0)
        group = 0 if GROUP is None else first // GROUP * group_stride
        weight = _load_weight(own, first, columns, is_output, SIZE, SPAN)
        total = _multiply(total, weight, x, scales + group, is_output, GROUP, ROWS_FIRST, IS_COMPILED)
        if HAS_UP:
            weight = _load_weight(other, first, columns, is_output, SIZE, SPAN)
            up_total = _multiply(up_total, weight, x, up_scales + group, is_output, GROUP, ROWS_FIRST, IS_COMPILED)
    bias = bias_ptr + weight_rows
    total = _complete(total, bias, scales, is_output, GROUP, HAS_BIAS, HAS_SCALE, ROWS_FIRST)
    if HAS_UP:
        bias += num_outputs
        up_total = _complete(up_total, bias, up_scales, is_output, GROUP, HAS_BIAS, HAS_SCALE, ROWS_FIRST)
    targets = out_ptr + _over_rows(out_rows.to(tl.int64) * num_outputs, ROWS_FIRST) + _over_outputs(outputs, ROWS_FIRST)
    product = _finish(total, up_total, out_ptr.dtype.element_ty, GATE)
    tl.store(targets, product, mask=is_x & _over_outputs(is_output, ROWS_FIRST))


@triton.jit
def one_row_gate_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    norm_ptr,
    experts_ptr,
    out_ptr,
    num_outputs,
    x_stride,
    scale_stride,
    group_stride,
    eps,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    CHOSEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    GATE: tl.constexpr,
    IS_PARTIAL: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (i, a) computes outputs i · OUTPUTS … of assignment a, with plain arithmetic: the activation of the first
    half of the product times the second half, or of the only half (see `grouped_kernel`). It reads the weights of the
    chosen experts alone. HAS_NORM: x is divided by its root mean square and multiplied by `norm` first. GROUP: inputs
    that share a scale, of which SPAN is a multiple. IS_PARTIAL: nothing is computed for experts that are not here, -1.

    What depends on it may begin when it knows the experts: then they are known there, too.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    assignment = tl.program_id(1)
    token = (assignment // CHOSEN).to(tl.int64)
    expert = tl.load(experts_ptr + assignment)
    if IS_PARTIAL:  # noqa: SIM102 (known when the kernel is compiled)
        if expert < 0:
            return
    x_ptr += token * x_stride
    factor = 1.0
    if HAS_NORM:
        everywhere = tl.arange(0, PADDED_SIZE)
        whole = tl.load(x_ptr + everywhere, mask=everywhere < SIZE, other=0.0).to(tl.float32)
        factor = 1.0 / tl.sqrt(tl.sum(whole * whole, axis=0) / SIZE + eps)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    columns = tl.arange(0, SPAN)
    is_output = outputs < num_outputs
    HAS_UP: tl.constexpr = GATE != "relu2"
    weight_rows = outputs + expert * num_outputs * (2 if HAS_UP else 1)
    own = weight_ptr + weight_rows.to(tl.int64)[:, None] * SIZE + columns[None, :]
    other = own + tl.cast(num_outputs, tl.int64) * SIZE
    NUM_SUMS: tl.constexpr = SPAN if GROUP is None else SPAN // GROUP
    groups = tl.arange(0, NUM_SUMS)[None, :] * group_stride
    scales = scale_ptr + weight_rows.to(tl.int64) * scale_stride
    up_scales = scales + num_outputs * scale_stride
    total = tl.zeros([OUTPUTS, NUM_SUMS], tl.float32)
    up_total = tl.zeros([OUTPUTS, NUM_SUMS], tl.float32)
    for first in range(0, SIZE, SPAN):
        weight = _load_weight(own, first, columns, is_output, SIZE, SPAN).to(tl.float32)
        if HAS_UP:
            up_weight = _load_weight(other, first, columns, is_output, SIZE, SPAN).to(tl.float32)
        is_column = first + columns < SIZE
        stored = tl.load(x_ptr + first + columns, mask=is_column, other=0.0)
        x = stored.to(tl.float32)
        if HAS_NORM:
            x = x * factor * tl.load(norm_ptr + first + columns, mask=is_column, other=0.0).to(tl.float32)
            x = x.to(stored.dtype).to(tl.float32)
        if GROUP is None:
            total += weight * x[None, :]
            if HAS_UP:
                up_total += up_weight * x[None, :]
        else:
            is_scale = is_output[:, None] & (first + tl.arange(0, NUM_SUMS) * GROUP < SIZE)[None, :]
            places = first // GROUP * group_stride + groups
            product = tl.sum(tl.reshape(weight * x[None, :], [OUTPUTS, NUM_SUMS, GROUP]), axis=2)
            total += product * tl.load(scales[:, None] + places, mask=is_scale, other=0.0)
            if HAS_UP:
                product = tl.sum(tl.reshape(up_weight * x[None, :], [OUTPUTS, NUM_SUMS, GROUP]), axis=2)
                up_total += product * tl.load(up_scales[:, None] + places, mask=is_scale, other=0.0)
    product, up = tl.sum(total, axis=1), tl.sum(up_total, axis=1)
    if HAS_SCALE and GROUP is None:
        product *= tl.load(scales, mask=is_output, other=0.0)
        if HAS_UP:
            up *= tl.load(up_scales, mask=is_output, other=0.0)
    if HAS_BIAS:
        product += tl.load(bias_ptr + weight_rows, mask=is_output, other=0.0).to(tl.float32)
        if HAS_UP:
            up += tl.load(bias_ptr + num_outputs + weight_rows, mask=is_output, other=0.0).to(tl.float32)
    targets = out_ptr + assignment.to(tl.int64) * num_outputs + outputs
    tl.store(targets, _finish(product, up, out_ptr.dtype.element_ty, GATE), mask=is_output)


@triton.jit
def one_row_down_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    experts_ptr,
    shares_ptr,
    out_ptr,
    num_outputs,
    out_stride,
    scale_stride,
    group_stride,
    SIZE: tl.constexpr,
    CHOSEN: tl.constexpr,
    SLOTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    ADDS: tl.constexpr,
    IS_PARTIAL: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (i, t) computes outputs i · OUTPUTS … of token t: the sum over its experts of their shares times the
    products of x [tokens · CHOSEN, SIZE] with their weights, all experts side by side. ADDS: add it to out. IS_PARTIAL:
    experts that are not here, -1, add nothing.

    It begins behind `one_row_gate_kernel`, and reads the first weights before that has ended.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(1)
    slots = tl.arange(0, SLOTS)
    is_slot = slots < CHOSEN
    assignments = token * CHOSEN + slots
    experts = tl.load(experts_ptr + assignments, mask=is_slot, other=0)
    if IS_PARTIAL:
        is_slot = is_slot & (experts >= 0)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    columns = tl.arange(0, SPAN)
    is_output = outputs < num_outputs
    is_place = is_slot[:, None] & is_output[None, :]
    weight_rows = (experts * num_outputs)[:, None] + outputs[None, :]
    own = weight_ptr + weight_rows.to(tl.int64)[:, :, None] * SIZE + columns[None, None, :]
    inputs = x_ptr + assignments.to(tl.int64)[:, None] * SIZE + columns[None, :]
    scales = scale_ptr + weight_rows.to(tl.int64) * scale_stride
    is_weight = is_place[:, :, None] & (columns < SIZE)[None, None, :]
    ahead = tl.load(own, mask=is_weight, other=0.0)
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
    shares = tl.load(shares_ptr + assignments, mask=is_slot, other=0.0)
    NUM_SUMS: tl.constexpr = SPAN if GROUP is None else SPAN // GROUP
    total = tl.zeros([SLOTS, OUTPUTS, NUM_SUMS], tl.float32)
    for first in range(0, SIZE, SPAN):
        is_column = first + columns < SIZE
        weight = ahead.to(tl.float32)
        if SIZE > SPAN:
            is_weight = is_place[:, :, None] & (first + SPAN + columns < SIZE)[None, None, :]
            ahead = tl.load(own + first + SPAN, mask=is_weight, other=0.0)
        x = tl.load(inputs + first, mask=is_slot[:, None] & is_column[None, :], other=0.0).to(tl.float32)
        if GROUP is None:
            total += weight * x[:, None, :]
        else:
            product = tl.sum(tl.reshape(weight * x[:, None, :], [SLOTS, OUTPUTS, NUM_SUMS, GROUP]), axis=3)
            groups = first // GROUP + tl.arange(0, NUM_SUMS)
            is_scale = is_place[:, :, None] & (groups * GROUP < SIZE)[None, None, :]
            places = scales[:, :, None] + (groups * group_stride)[None, None, :]
            total += product * tl.load(places, mask=is_scale, other=0.0)
    product = tl.sum(total, axis=2)
    if HAS_SCALE and GROUP is None:
        product *= tl.load(scales, mask=is_place, other=0.0)
    if HAS_BIAS:
        product += tl.load(bias_ptr + weight_rows, mask=is_place, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    product = tl.sum(product.to(kind).to(tl.float32) * shares[:, None], axis=0).to(kind)
    targets = out_ptr + token.to(tl.int64) * out_stride + outputs
    if ADDS:
        product = (product.to(tl.float32) + tl.load(targets, mask=is_output, other=0.0).to(tl.float32)).to(kind)
    tl.store(targets, product, mask=is_output)
