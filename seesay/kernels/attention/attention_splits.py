"""Triton kernels that divide the contexts of decode rows into splits, and put together what each split gave (Dao et al.
2023, "Flash-Decoding").
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from seesay.kernels.attention.online_softmax import find_window


@triton.jit(do_not_specialize=["num_rows", "num_items", "wanted_items", "whole_rows", "least_tokens"])
def divide_kernel(
    lens_ptr,
    items_ptr,
    parts_ptr,
    num_rows,
    num_items,
    wanted_items,
    whole_rows,
    least_tokens,
    window,
    BLOCK_B: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_CHUNK: tl.constexpr,
):
    """Divide the contexts of all decode rows into splits of about equal length.

    items int32 [num_items, 4] gets the splits: (row, first key, one past the last key, number of splits of the row);
    unused items are empty. parts int32 [num_rows, 2] gets (first item, number of items) of each row. There are about
    `wanted_items` splits; none is shorter than `least_tokens` unless its row is. From `whole_rows` rows on, rows are
    not split if none is longer than twice the mean. Program i writes the items from i · BLOCK_W; program 0 also all
    parts.
    """
    rows = tl.arange(0, BLOCK_B)
    lens = tl.load(lens_ptr + rows, mask=rows < num_rows, other=0)
    spans = lens
    if HAS_WINDOW:
        spans = lens - tl.maximum(lens - find_window(window, lens - 1, IS_CHUNK), 0) // BLOCK_N * BLOCK_N
    total = tl.sum(spans.to(tl.int64), axis=0)
    longest = tl.max(spans, axis=0)
    tokens = tl.maximum((total + wanted_items - 1) // wanted_items, least_tokens).to(tl.int32)
    if (num_rows >= whole_rows) & (longest.to(tl.int64) * num_rows <= 2 * total):
        tokens = tl.maximum(tokens, longest)
    tokens = (tokens + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    counts = (spans + tokens - 1) // tokens
    ends = tl.cumsum(counts, axis=0)
    if tl.program_id(0) == 0:
        tl.store(parts_ptr + rows * 2, ends - counts, mask=rows < num_rows)
        tl.store(parts_ptr + rows * 2 + 1, counts, mask=rows < num_rows)
    items = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    is_before = ends[None, :] <= items[:, None]
    row = tl.sum(is_before.to(tl.int32), axis=1)
    split = items - tl.sum(tl.where(is_before, counts[None, :], 0), axis=1)
    own = row[:, None] == rows[None, :]
    count = tl.sum(tl.where(own, counts[None, :], 0), axis=1)
    span = tl.sum(tl.where(own, spans[None, :], 0), axis=1)
    length = tl.sum(tl.where(own, lens[None, :], 0), axis=1)
    share = (span + tl.maximum(count, 1) - 1) // tl.maximum(count, 1)
    start = length - span + split * ((share + BLOCK_N - 1) // BLOCK_N * BLOCK_N)
    stop = tl.minimum(start + (share + BLOCK_N - 1) // BLOCK_N * BLOCK_N, length)
    is_item = items < num_items
    tl.store(items_ptr + items * 4, row, mask=is_item)
    tl.store(items_ptr + items * 4 + 1, start, mask=is_item)
    tl.store(items_ptr + items * 4 + 2, stop, mask=is_item)
    tl.store(items_ptr + items * 4 + 3, count, mask=is_item)


@triton.jit
def combine_kernel(
    parts_ptr,
    partials_ptr,
    sums_ptr,
    out_ptr,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (b, i) combines the splits of row b, weighted by their sums, if there are several, for the HEADS heads
    from head i · HEADS on.

    The kernel starts while `decode_kernel` still runs. Programs with work wait for `decode_kernel`. So does the first
    program, so that this kernel never ends before `decode_kernel`.
    """
    row = tl.program_id(0).to(tl.int64)
    first_head = tl.program_id(1) * HEADS
    first_item = tl.load(parts_ptr + row * 2).to(tl.int64)
    num_splits = tl.load(parts_ptr + row * 2 + 1)
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        if (num_splits > 1) | (row + first_head == 0):
            tl.extra.cuda.gdc_wait()
    if num_splits == 1:
        return
    dims = tl.arange(0, BLOCK_D)
    for head in range(first_head, first_head + HEADS):
        top = float("-inf")
        total = 0.0
        output = tl.zeros([BLOCK_D], tl.float32)
        for first in range(0, num_splits, BLOCK_S):
            splits = first + tl.arange(0, BLOCK_S)
            is_split = splits < num_splits
            places = (first_item + splits) * NUM_HEADS + head
            tops = tl.load(sums_ptr + places * 2, mask=is_split, other=float("-inf"))
            totals = tl.load(sums_ptr + places * 2 + 1, mask=is_split, other=0.0)
            parts = tl.load(
                partials_ptr + places[:, None] * DIM + dims[None, :],
                mask=is_split[:, None] & (dims < DIM)[None, :],
                other=0.0,
            )
            new_top = tl.maximum(top, tl.max(tops, axis=0))
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            fade = tl.exp2(top - base)
            weights = totals * tl.exp2(tops - base)
            total = total * fade + tl.sum(weights, axis=0)
            output = output * fade + tl.sum(parts * weights[:, None], axis=0)
            top = new_top
        output = output / tl.where(total == 0.0, 1.0, total)
        places = out_ptr + (row * NUM_HEADS + head) * DIM + dims
        tl.store(places, output.to(out_ptr.dtype.element_ty), mask=dims < DIM)
