"""Kernels of `experts` that choose and sort, and that add what experts computed for a token.

An *assignment* is a token and one of its experts; those of token t are t · CHOSEN ….
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

_LOWEST = tl.constexpr(float("-inf"))


@triton.jit
def _keep_best_groups(
    choice, experts, NUM: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, SUMS_TWO: tl.constexpr
):
    """Return the scores with those of all but the KEPT best of GROUPS equal groups of experts at -infinity. A group
    counts as its best expert, or as its two best ones."""
    GROUP_SIZE: tl.constexpr = NUM // GROUPS
    group_ids = tl.arange(0, GROUPS)
    scores = tl.full([GROUPS], _LOWEST, tl.float32)
    for group in tl.static_range(GROUPS):
        own = tl.where(experts // GROUP_SIZE == group, choice, _LOWEST)
        score = tl.max(own, axis=0)
        if SUMS_TWO:
            score += tl.max(tl.where(experts == tl.argmax(own, axis=0), _LOWEST, own), axis=0)
        scores = tl.where(group_ids == group, score, scores)
    kept = tl.zeros(choice.shape, tl.int32)
    for _ in tl.static_range(KEPT):
        best = tl.argmax(scores, axis=0)
        scores = tl.where(group_ids == best, _LOWEST, scores)
        kept = tl.where(experts // GROUP_SIZE == best, 1, kept)
    return tl.where(kept == 1, choice, _LOWEST)


@triton.jit
def choose_kernel(
    logits_ptr,
    bias_ptr,
    experts_ptr,
    weights_ptr,
    logits_stride,
    scale,
    least_sum,
    tolerance,
    NUM: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    SLOTS: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NORMALIZES: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    SUMS_TWO: tl.constexpr,
    TAKES_TURNS: tl.constexpr,
    FIRST: tl.constexpr,
    OWN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program t chooses the experts of token t. A score that is NaN is never better than another, so that every choice
    is an expert. TAKES_TURNS: a share is that among the experts which are left and near the best one, by `tolerance`
    relative to the larger logit. Experts from FIRST on, OWN of them, are written as numbers from 0 on; others as -1,
    with a share of 0.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, PADDED)
    is_expert = experts < NUM
    logits = tl.load(logits_ptr + token * logits_stride + experts, mask=is_expert, other=_LOWEST).to(tl.float32)
    if TAKES_TURNS:
        scores = logits
    elif IS_SIGMOID:
        scores = tl.sigmoid(logits)
    else:
        powers = tl.exp(logits - tl.max(logits, axis=0))
        scores = powers / tl.sum(powers, axis=0)
    choice = scores
    if HAS_BIAS:
        choice += tl.load(bias_ptr + experts, mask=is_expert, other=0.0)
    choice = tl.where(is_expert & (choice == choice), choice, _LOWEST)
    if GROUPS > 1:
        choice = _keep_best_groups(choice, experts, NUM, GROUPS, KEPT, SUMS_TWO)
    slots = tl.arange(0, SLOTS)
    chosen = tl.zeros([SLOTS], tl.int32)
    weights = tl.zeros([SLOTS], tl.float32)
    for slot in tl.static_range(CHOSEN):
        best = tl.argmax(choice, axis=0)
        chosen = tl.where(slots == slot, best, chosen)
        if TAKES_TURNS:
            top = tl.max(choice, axis=0)
            is_far = (top - logits) / tl.maximum(tl.abs(logits), top) > tolerance
            share = 1.0 / tl.sum(tl.where(is_far, 0.0, tl.exp(choice - top)), axis=0)
        else:
            share = tl.sum(tl.where(experts == best, scores, 0.0), axis=0)
        weights = tl.where(slots == slot, share, weights)
        choice = tl.where(experts == best, _LOWEST, choice)
    if NORMALIZES:
        weights /= tl.maximum(tl.sum(weights, axis=0), least_sum)
    chosen = tl.minimum(chosen, NUM - 1)
    weights *= scale
    if OWN < NUM:
        is_own = (chosen >= FIRST) & (chosen < FIRST + OWN)
        chosen = tl.where(is_own, chosen - FIRST, -1)
        weights = tl.where(is_own, weights, 0.0)
    places = token * CHOSEN + slots
    tl.store(experts_ptr + places, chosen, mask=slots < CHOSEN)
    tl.store(weights_ptr + places, weights, mask=slots < CHOSEN)


@triton.jit(do_not_specialize=["num_assignments"])
def sort_kernel(
    experts_ptr,
    order_ptr,
    starts_ptr,
    num_assignments,
    SPAN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program e writes the assignments of expert e, in their order, behind those of all experts before it, and the
    place of its first one. Those of experts that are not here, -1, are left out. There is one program more than there
    are experts: it writes where the last one's end."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    own = tl.program_id(0)
    lanes = tl.arange(0, SPAN)
    place = 0
    for first in range(0, num_assignments, SPAN):
        is_inside = first + lanes < num_assignments
        experts = tl.load(experts_ptr + first + lanes, mask=is_inside, other=1 << 30)
        place += tl.sum((experts < own).to(tl.int32), axis=0)
    tl.store(starts_ptr + own, place)
    if own < tl.num_programs(0) - 1:
        for first in range(0, num_assignments, SPAN):
            is_inside = first + lanes < num_assignments
            experts = tl.load(experts_ptr + first + lanes, mask=is_inside, other=1 << 30)
            is_own = (experts == own).to(tl.int32)
            tl.store(order_ptr + place + tl.cumsum(is_own, axis=0) - 1, first + lanes, mask=is_own == 1)
            place += tl.sum(is_own, axis=0)


@triton.jit
def combine_kernel(
    x_ptr,
    shares_ptr,
    out_ptr,
    out_stride,
    SIZE: tl.constexpr,
    CHOSEN: tl.constexpr,
    SPAN: tl.constexpr,
    ADDS: tl.constexpr,
    IS_PARTIAL: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (t, i) computes elements i · SPAN … of token t: the sum of its rows of x [tokens · CHOSEN, SIZE] times
    their shares. ADDS: add it to out. IS_PARTIAL: rows with a share of 0 were not computed."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    is_inside = columns < SIZE
    total = tl.zeros([SPAN], tl.float32)
    for slot in tl.static_range(CHOSEN):
        assignment = token * CHOSEN + slot
        share = tl.load(shares_ptr + assignment)
        is_read = is_inside
        if IS_PARTIAL:
            is_read = columns < tl.where(share == 0.0, 0, SIZE)
        row = tl.load(x_ptr + assignment * SIZE + columns, mask=is_read, other=0.0).to(tl.float32)
        total += row * share
    kind = out_ptr.dtype.element_ty
    total = total.to(kind)
    targets = out_ptr + token * out_stride + columns
    if ADDS:
        total = (total.to(tl.float32) + tl.load(targets, mask=is_inside, other=0.0).to(tl.float32)).to(kind)
    tl.store(targets, total, mask=is_inside)
