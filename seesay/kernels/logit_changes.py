"""Triton kernels that change some logits of a row before its token is chosen: penalties, and bans that copy nothing."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.sampling import SEARCH_BLOCK, SEARCH_WARPS


@triton.jit(
    do_not_specialize_on_alignment=["starts_ptr", "ids_ptr", "counts_ptr", "penalties_ptr", "pending_ptr", "rows_ptr"]
)
def penalize_kernel(
    scores_ptr,
    rows_ptr,
    starts_ptr,
    ids_ptr,
    counts_ptr,
    penalties_ptr,
    pending_ptr,
    previous_ptr,
    row_stride,
    BLOCK: tl.constexpr,
):
    """One row: its counted tokens and then, in one more place, the pending one, which counts for those it equals."""
    index = tl.program_id(0)
    row_ptr = scores_ptr + tl.load(rows_ptr + index) * row_stride
    start, stop = tl.load(starts_ptr + index), tl.load(starts_ptr + index + 1)
    repetition = tl.load(penalties_ptr + index * 3).to(tl.float32)
    presence, frequency = tl.load(penalties_ptr + index * 3 + 1), tl.load(penalties_ptr + index * 3 + 2)
    pending = tl.load(pending_ptr + index)
    if pending >= 0:
        pending = tl.load(previous_ptr + pending)
    num_equal = tl.zeros([BLOCK], tl.int32)
    for first in range(start, stop + 1, BLOCK):
        places = first + tl.arange(0, BLOCK)
        is_counted = places < stop
        ids = tl.load(ids_ptr + places, mask=is_counted, other=-1).to(tl.int64)
        counts = tl.load(counts_ptr + places, mask=is_counted, other=0)
        is_pending = is_counted & (ids == pending)
        num_equal += is_pending.to(tl.int32)
        is_new = (pending >= 0) & (tl.sum(num_equal, axis=0) == 0)
        is_inside = places < stop + is_new.to(tl.int64)
        ids = tl.where(is_counted, ids, pending)
        counts += (is_pending | (places == stop)).to(tl.int32)
        score = tl.load(row_ptr + ids, mask=is_inside, other=0.0)
        score = tl.where(score < 0, score * repetition, tl.div_rn(score, repetition + tl.zeros_like(score)))
        amount = tl.where(counts > 0, -presence - frequency * counts.to(tl.float64), 0.0).to(tl.float32)
        tl.store(row_ptr + ids, score + amount, mask=is_inside)


def penalize_tokens(
    scores: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
    penalties: torch.Tensor,
    pending: torch.Tensor,
    previous: torch.Tensor,
) -> None:
    """Apply, in place, the penalties of `rows` int64 [R] of scores float32 [N, V].

    starts: int64 [R + 1]; ids and counts[starts[r]:starts[r + 1]] (int32) are the different tokens of row r and how
    often each was generated. penalties: float64 [R, 3], for repetition, presence and frequency. pending: int64 [R],
    where in `previous` (int64) is one more generated token; -1: there is none.
    """
    assert scores.stride(1) == 1 and scores.dtype is torch.float32
    penalize_kernel[(len(rows),)](
        scores, rows, starts, ids, counts, penalties, pending, previous, scores.stride(0), BLOCK=1024, num_warps=4
    )


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "banned_ptr"])
def avoid_kernel(
    scores_ptr,
    best_ptr,
    token_ids_ptr,
    rows_ptr,
    starts_ptr,
    banned_ptr,
    row_stride,
    num_tokens,
    BLOCK: tl.constexpr,
):
    """One row: where its best token is banned, the first of the best that are not. A NaN counts as infinite."""
    index = tl.program_id(0)
    row = tl.load(rows_ptr + index)
    start, stop = tl.load(starts_ptr + index), tl.load(starts_ptr + index + 1)
    token = tl.load(token_ids_ptr + row)
    is_banned = token < 0
    for place in range(start, stop):
        is_banned = is_banned | (tl.load(banned_ptr + place) == token)
    if is_banned:
        token, best = token * 0, tl.full([], float("-inf"), tl.float32)
        for first in range(0, num_tokens, BLOCK):
            tokens = first + tl.arange(0, BLOCK)
            is_inside = tokens < num_tokens
            score = tl.load(scores_ptr + row * row_stride + tokens, mask=is_inside, other=float("-inf")).to(tl.float32)
            score = tl.where(score == score, score, float("inf"))
            for place in range(start, stop):
                score = tl.where(tokens == tl.load(banned_ptr + place), float("-inf"), score)
            greatest = tl.max(score, axis=0)
            if greatest > best:
                token = tl.min(tl.where(score == greatest, tokens, num_tokens), axis=0).to(tl.int64)
                best = greatest
        tl.store(token_ids_ptr + row, token)
        tl.store(best_ptr + row, best.to(best_ptr.dtype.element_ty))


def avoid_tokens(
    scores: torch.Tensor,
    best: torch.Tensor,
    token_ids: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    banned: torch.Tensor,
) -> None:
    """Make best [N] and token_ids int64 [N], greatest of each row of scores [N, V] and where it is, those of the tokens
    that are not banned: in `rows` int64 [R], of which row r may not have banned[starts[r]:starts[r + 1]] (int64)."""
    assert scores.stride(1) == 1 and best.stride(0) == 1 and token_ids.stride(0) == 1
    avoid_kernel[(len(rows),)](
        scores,
        best,
        token_ids,
        rows,
        starts,
        banned,
        scores.stride(0),
        scores.shape[1],
        BLOCK=SEARCH_BLOCK,
        num_warps=SEARCH_WARPS,
    )
