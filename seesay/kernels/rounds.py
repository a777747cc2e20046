"""Triton kernels of what a round of proposals writes on the device: each of them stands for a dozen small operations
between two graphs (see `seesay/llm/running/proposals/round_state.py`).
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.row_state import LENGTH, TOKEN

MOST_TOKENS = 16
"""Of a row, the last known one and those that are proposed behind it: one kernel is compiled for all."""
_BLOCK = 128
_LOGITS = 8192
"""Logits that a program looks at together."""


@triton.jit(
    do_not_specialize=["num_lent", "row_stride", "token_stride"],
    do_not_specialize_on_alignment=["slots_ptr", "owners_ptr", "rows_ptr", "offsets_ptr", "proposed_ptr"],
)
def put_proposed_kernel(
    state_ptr,
    slots_ptr,
    owners_ptr,
    rows_ptr,
    offsets_ptr,
    proposed_ptr,
    num_lent,
    row_stride,
    token_stride,
    NUM_COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write BLOCK proposed tokens, and where they stand, to the slots that were lent to them."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_lent = index < num_lent
    offset = tl.load(offsets_ptr + index, mask=is_lent, other=1)
    row = tl.load(rows_ptr + index, mask=is_lent, other=0)
    token = tl.load(proposed_ptr + row * row_stride + (offset - 1) * token_stride, mask=is_lent, other=0)
    owner = tl.load(owners_ptr + index, mask=is_lent, other=0)
    length = tl.load(state_ptr + owner * NUM_COLUMNS + LENGTH, mask=is_lent, other=0)
    fields = state_ptr + tl.load(slots_ptr + index, mask=is_lent, other=0) * NUM_COLUMNS
    tl.store(fields + TOKEN, tl.maximum(token, 0), mask=is_lent)
    tl.store(fields + LENGTH, length + offset, mask=is_lent)


def put_proposed(
    state: torch.Tensor,
    slots: torch.Tensor,
    owners: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    proposed: torch.Tensor,
) -> None:
    """Write `proposed` int64 [R, D] to `state` int64 [S + 1, C]: token offsets[i] - 1 of row rows[i] to slot slots[i],
    as the one at so many places behind that of slot owners[i]. All int64 [L]; a token less than 0 is written as 0."""
    assert state.is_contiguous()
    put_proposed_kernel[(triton.cdiv(len(slots), _BLOCK),)](
        state,
        slots,
        owners,
        rows,
        offsets,
        proposed,
        len(slots),
        proposed.stride(0),
        proposed.stride(1),
        NUM_COLUMNS=state.shape[1],
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit(
    do_not_specialize=["num_rows", "width", "row_stride", "token_stride"],
    do_not_specialize_on_alignment=["own_ptr", "at_ptr", "proposed_ptr", "ids_ptr", "best_ptr"],
)
def count_round_kernel(
    state_ptr,
    own_ptr,
    at_ptr,
    proposed_ptr,
    ids_ptr,
    best_ptr,
    found_ptr,
    num_rows,
    width,
    row_stride,
    token_stride,
    NUM_COLUMNS: tl.constexpr,
    NUM: tl.constexpr,
):
    """Count how many of a row's proposed tokens are those that the model chose, and let the row go on behind them."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, NUM)
    is_token, is_proposed = index < width, index < width - 1
    at = tl.load(at_ptr + row * width + index, mask=is_token, other=0)
    token = tl.load(ids_ptr + at, mask=is_token, other=0)
    best = tl.load(best_ptr + at, mask=is_token, other=0.0).to(tl.float32)
    proposed = tl.load(proposed_ptr + row * row_stride + index * token_stride, mask=is_proposed, other=-1)
    num_right = tl.min(tl.where(is_proposed & (proposed == token), NUM, index), axis=0).to(tl.int64)
    last = tl.sum(tl.where(index == num_right, token, 0), axis=0)
    fields = state_ptr + tl.load(own_ptr + row) * NUM_COLUMNS
    place = tl.load(fields + LENGTH) - 1
    tl.store(found_ptr + row * width + index, token, mask=is_token)
    is_finite = (tl.abs(best) < float("inf")).to(tl.int64)
    tl.store(found_ptr + (num_rows + row) * width + index, is_finite, mask=is_token)
    each = found_ptr + 2 * num_rows * width + row
    tl.store(each, num_right)
    tl.store(each + num_rows, tl.sum((proposed >= 0).to(tl.int64), axis=0))
    tl.store(each + 2 * num_rows, last)
    tl.store(each + 3 * num_rows, place)
    tl.store(fields + TOKEN, last)
    tl.store(fields + LENGTH, place + 1 + num_right)


def count_round(
    state: torch.Tensor,
    own: torch.Tensor,
    at: torch.Tensor,
    proposed: torch.Tensor,
    token_ids: torch.Tensor,
    best: torch.Tensor,
) -> torch.Tensor:
    """See `round_state.count_round`: what it packs, int64 [R · (2 W + 4)]."""
    num_rows, width = at.shape
    assert state.is_contiguous() and at.is_contiguous() and width <= MOST_TOKENS
    found = torch.empty(num_rows * (2 * width + 4), dtype=torch.int64, device=state.device)
    count_round_kernel[(num_rows,)](
        state,
        own,
        at,
        proposed,
        token_ids,
        best,
        found,
        num_rows,
        width,
        proposed.stride(0),
        proposed.stride(1),
        NUM_COLUMNS=state.shape[1],
        NUM=MOST_TOKENS,
        num_warps=1,
    )
    return found


@triton.jit(
    do_not_specialize=["scratch_slot", "num_rows", "width", "num_tokens"],
    do_not_specialize_on_alignment=["owners_ptr", "lent_ptr", "tokens_ptr", "right_ptr", "last_ptr", "place_ptr"],
)
def put_missing_kernel(
    state_ptr,
    slots_ptr,
    lasts_ptr,
    owners_ptr,
    lent_ptr,
    tokens_ptr,
    right_ptr,
    last_ptr,
    place_ptr,
    scratch_slot,
    num_rows,
    width,
    num_tokens,
    NUM_COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write BLOCK tokens that a layer has not computed, and those behind them, to the slots of their rows."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, index = (at // width).to(tl.int64), at % width
    is_token = row < num_rows
    num_right = tl.load(right_ptr + row, mask=is_token, other=0)
    place = tl.load(place_ptr + row, mask=is_token, other=0) + index
    owner = tl.load(owners_ptr + row, mask=is_token, other=0)
    is_lent = is_token & (index < width - 1)
    lent = tl.load(lent_ptr + row * (width - 1) + index, mask=is_lent, other=0)
    slot = tl.where(index < num_right, lent, tl.where(index == num_right, owner, scratch_slot))
    tl.store(slots_ptr + at, tl.where(is_token, slot, scratch_slot), mask=at < num_tokens)
    token = tl.load(tokens_ptr + at, mask=is_lent, other=0)
    tl.store(state_ptr + lent * NUM_COLUMNS + TOKEN, token, mask=is_lent)
    tl.store(state_ptr + lent * NUM_COLUMNS + LENGTH, place, mask=is_lent)
    is_last = is_token & (index == num_right)
    last = tl.load(last_ptr + row, mask=is_last, other=0)
    tl.store(state_ptr + owner * NUM_COLUMNS + TOKEN, last, mask=is_last)
    tl.store(state_ptr + owner * NUM_COLUMNS + LENGTH, place, mask=is_last)
    tl.store(lasts_ptr + row, at.to(tl.int64), mask=is_last)


def put_missing(
    state: torch.Tensor,
    slots: torch.Tensor,
    lasts: torch.Tensor,
    owners: torch.Tensor,
    lent: torch.Tensor,
    tokens: torch.Tensor,
    num_right: torch.Tensor,
    last_tokens: torch.Tensor,
    places: torch.Tensor,
) -> None:
    """See `round_state.put_missing`."""
    num_rows, width = tokens.shape
    assert state.is_contiguous() and lent.is_contiguous() and tokens.is_contiguous() and slots.numel() >= tokens.numel()
    put_missing_kernel[(triton.cdiv(len(slots), _BLOCK),)](
        state,
        slots,
        lasts,
        owners,
        lent,
        tokens,
        num_right,
        last_tokens,
        places,
        len(state) - 1,
        num_rows,
        width,
        len(slots),
        NUM_COLUMNS=state.shape[1],
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_logits", "row_stride"], do_not_specialize_on_alignment=["owners_ptr", "found_ptr"])
def choose_kernel(
    logits_ptr,
    ids_ptr,
    owners_ptr,
    state_ptr,
    found_ptr,
    num_logits,
    row_stride,
    NUM_COLUMNS: tl.constexpr,
    HAS_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Choose one row's token of the greatest logit, of equal ones the first."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    own_ptr = logits_ptr + row * row_stride
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    at = index
    for first in range(0, num_logits, BLOCK):
        logit = tl.load(own_ptr + first + index, mask=first + index < num_logits, other=float("-inf")).to(tl.float32)
        is_more = logit > best
        best = tl.where(is_more, logit, best)
        at = tl.where(is_more, first + index, at)
    chosen = tl.min(tl.where(best == tl.max(best, axis=0), at, num_logits - 1), axis=0).to(tl.int64)
    if HAS_IDS:
        chosen = tl.load(ids_ptr + chosen)
    tl.store(found_ptr + row, chosen)
    tl.store(state_ptr + tl.load(owners_ptr + row) * NUM_COLUMNS + TOKEN, chosen)


def choose(
    logits: torch.Tensor, known_ids: torch.Tensor | None, owners: torch.Tensor, state: torch.Tensor, found: torch.Tensor
) -> None:
    """See `round_state.choose`."""
    num_rows, num_logits = logits.shape
    assert state.is_contiguous() and logits.stride(1) == 1 and found.is_contiguous()
    choose_kernel[(num_rows,)](
        logits,
        logits if known_ids is None else known_ids,
        owners,
        state,
        found,
        num_logits,
        logits.stride(0),
        NUM_COLUMNS=state.shape[1],
        HAS_IDS=known_ids is not None,
        BLOCK=_LOGITS,
        num_warps=16,
    )
