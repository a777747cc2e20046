"""Triton kernels that choose tokens: top-k, top-p and min-p without sorting the vocabulary.

A token's *depth* is how far its score lies below the row's best, as a power of two of its probability: the filters keep
the tokens down to some depth, the *cut*. The first kernel looks at every token once and keeps the least depth and the
mass of each group of tokens. From these alone the second one bounds the cut, so that it searches only the few groups
that begin above the bound; of a flat distribution these are all. Masses are whole numbers: sums of them are exact.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

GROUP = 64
"""Tokens per group: a cache line of 16-bit logits."""
GROUPS_PER_PROGRAM = 64
SEARCH_BLOCK = 4096
"""Tokens that a program searches at a time."""
SEARCH_WARPS = 16
BOUND_STEPS = tl.constexpr(12)
"""Bisection steps over the range of depths that contains the bound."""

ROW, POINT, TOP_P, TOP_K, SCALE, REACH, NUM_FIELDS = (tl.constexpr(place) for place in range(7))


@triton.jit
def _weigh(depth, UNIT: tl.constexpr):
    return (tl.exp2(-depth) * UNIT).to(tl.int64)


@triton.jit
def _take_share(part, whole):
    """Return part · whole, rounded up."""
    exact = part * whole.to(tl.float64)
    down = exact.to(tl.int64)
    return down + (down.to(tl.float64) < exact).to(tl.int64)


@triton.jit
def _load_float32(ptr):
    """Load a float32 that is the lower half of an int64."""
    return tl.load(ptr).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _load_top_p(fields):
    return tl.load(fields + TOP_P).to(tl.float64, bitcast=True)


@triton.jit
def _load_depths(row_ptr, tokens, best, scale, num_tokens):
    score = tl.load(row_ptr + tokens, mask=tokens < num_tokens, other=float("-inf")).to(tl.float32)
    return (best - score) * scale


@triton.jit
def _load_chosen(
    row_ptr, chosen_ptr, start, num_chosen, best, scale, num_tokens, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """Load tokens `start` … `start` + BLOCK - 1 of the chosen groups, and their depths."""
    places = start + tl.arange(0, BLOCK)
    is_inside = places < num_chosen
    tokens = tl.load(chosen_ptr + places // GROUP, mask=is_inside, other=0) * GROUP + places % GROUP
    depth = _load_depths(row_ptr, tokens, best, scale, num_tokens)
    return tokens, tl.where(is_inside, depth, float("inf"))


@triton.jit
def survey_kernel(
    scores_ptr,
    best_ptr,
    drawn_ptr,
    nearest_ptr,
    masses_ptr,
    row_stride,
    num_tokens,
    num_groups,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Compute the least depth and the mass of each group. Without top-k and top-p, the mass is of the tokens that min-p
    keeps."""
    index = tl.program_id(1).to(tl.int64)
    fields = drawn_ptr + index * NUM_FIELDS
    row = tl.load(fields + ROW)
    best = tl.load(best_ptr + row).to(tl.float32)
    scale = _load_float32(fields + SCALE)
    is_searched = (_load_top_p(fields) < 1) | (tl.load(fields + TOP_K) < num_tokens)
    reach = tl.where(is_searched, float("inf"), _load_float32(fields + REACH))

    if tl.abs(best) < float("inf"):
        groups = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
        tokens = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        depth = _load_depths(scores_ptr + row * row_stride, tokens, best, scale, num_tokens)
        mass = tl.sum(tl.where(depth <= reach, _weigh(depth, UNIT), 0), axis=1)
        is_inside = groups < num_groups
        tl.store(nearest_ptr + index * num_groups + groups, tl.min(depth, axis=1), mask=is_inside)
        tl.store(masses_ptr + index * num_groups + groups, mass, mask=is_inside)


@triton.jit
def _bound_cut(nearest, masses, by_count, least, DEEPEST: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr):
    """Return a depth down to which there are certainly `least` tokens (or that mass). Each group that begins above this
    depth has at least one token there. Its tokens below it, fewer than GROUP, weigh less each than a token at it."""
    lightest = _weigh(nearest, UNIT)
    near, far = tl.full([], 0, tl.float32), tl.full([], DEEPEST, tl.float32)
    for _ in range(BOUND_STEPS):
        middle = (near + far) * 0.5
        certain = tl.maximum(lightest, masses - GROUP * _weigh(middle, UNIT))
        amount = tl.sum(tl.where(nearest <= middle, tl.where(by_count, 1, certain), 0), axis=0)
        near, far = tl.where(amount >= least, near, middle), tl.where(amount >= least, middle, far)
    return far


@triton.jit
def _find_cut(
    row_ptr,
    chosen_ptr,
    num_chosen,
    best,
    scale,
    num_tokens,
    by_count,
    least,
    far,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the least depth down to which there are `least` tokens (or that mass), or `far` if there are fewer. Each
    bisection step moves the ends of the range to depths of actual tokens, so few steps are needed."""
    near = tl.full([], 0, tl.float32)
    while near < far:
        middle = (near + far) * 0.5
        middle = tl.where(middle < far, middle, near)
        amounts = tl.zeros([BLOCK], dtype=tl.int64)
        below = tl.zeros([BLOCK], dtype=tl.float32)
        above = tl.full([BLOCK], float("inf"), dtype=tl.float32)
        for start in range(0, num_chosen, BLOCK):
            _, depth = _load_chosen(row_ptr, chosen_ptr, start, num_chosen, best, scale, num_tokens, GROUP, BLOCK)
            is_inside = depth <= middle
            amounts += tl.where(is_inside, tl.where(by_count, 1, _weigh(depth, UNIT)), 0)
            below = tl.where(is_inside, tl.maximum(below, depth), below)
            above = tl.where(is_inside, above, tl.minimum(above, depth))
        is_enough = tl.sum(amounts, axis=0) >= least
        least_above = tl.minimum(tl.min(above, axis=0), far)
        far = tl.where(is_enough, tl.max(below, axis=0), far)
        near = tl.where(is_enough, near, least_above)
    return far


@triton.jit
def _sum_mass(
    row_ptr,
    chosen_ptr,
    num_chosen,
    best,
    scale,
    num_tokens,
    cut,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the mass of the chosen groups' tokens down to the cut."""
    masses = tl.zeros([BLOCK], dtype=tl.int64)
    for start in range(0, num_chosen, BLOCK):
        _, depth = _load_chosen(row_ptr, chosen_ptr, start, num_chosen, best, scale, num_tokens, GROUP, BLOCK)
        masses += tl.where(depth <= cut, _weigh(depth, UNIT), 0)
    return tl.sum(masses, axis=0)


@triton.jit
def _pick(
    row_ptr,
    chosen_ptr,
    num_chosen,
    best,
    scale,
    num_tokens,
    cut,
    target,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the first token of the chosen groups, down to the cut, at which the cumulative mass passes `target`."""
    before = target * 0
    token = num_tokens - 1
    for start in range(0, num_chosen, BLOCK):
        tokens, depth = _load_chosen(row_ptr, chosen_ptr, start, num_chosen, best, scale, num_tokens, GROUP, BLOCK)
        masses = tl.where(depth <= cut, _weigh(depth, UNIT), 0)
        after = before + tl.sum(masses, axis=0)
        if (before <= target) & (target < after):
            ends = before + tl.cumsum(masses, axis=0)
            token = tl.min(tl.where((masses > 0) & (ends > target), tokens, num_tokens), axis=0)
        before = after
    return token


@triton.jit
def draw_kernel(
    scores_ptr,
    best_ptr,
    drawn_ptr,
    nearest_ptr,
    masses_ptr,
    chosen_ptr,
    token_ids_ptr,
    row_stride,
    num_tokens,
    num_groups,
    UNIT: tl.constexpr,
    DEEPEST: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    ALL_GROUPS: tl.constexpr,
):
    """Find the cut of one row, then draw its token. A row whose best score is not finite gets token 0."""
    index = tl.program_id(0).to(tl.int64)
    fields = drawn_ptr + index * NUM_FIELDS
    row = tl.load(fields + ROW)
    point, top_p = tl.load(fields + POINT).to(tl.float64) * (1.0 / (1 << 33)), _load_top_p(fields)
    top_k = tl.load(fields + TOP_K)
    scale, reach = _load_float32(fields + SCALE), _load_float32(fields + REACH)
    best = tl.load(best_ptr + row).to(tl.float32)
    row_ptr = scores_ptr + row * row_stride
    chosen_ptr += index * num_groups

    token = num_tokens * 0
    if tl.abs(best) < float("inf"):
        groups = tl.arange(0, ALL_GROUPS)
        is_group = groups < num_groups
        masses = tl.load(masses_ptr + index * num_groups + groups, mask=is_group, other=0)
        total = tl.sum(masses, axis=0)
        has_top_k = top_k < num_tokens
        if has_top_k | (top_p < 1):
            nearest = tl.load(nearest_ptr + index * num_groups + groups, mask=is_group, other=float("inf"))
            least = tl.where(has_top_k, top_k, _take_share(top_p, total))
            cut = _bound_cut(nearest, masses, has_top_k, least, DEEPEST, UNIT, GROUP)
            is_chosen = nearest <= cut
            places = tl.cumsum(is_chosen.to(tl.int32), axis=0) - 1
            tl.store(chosen_ptr + places, groups, mask=is_chosen)
            num_chosen = tl.sum(is_chosen.to(tl.int32), axis=0) * GROUP
            tl.debug_barrier()

            cut = _find_cut(
                row_ptr,
                chosen_ptr,
                num_chosen,
                best,
                scale,
                num_tokens,
                has_top_k,
                least,
                cut,
                UNIT,
                GROUP,
                BLOCK,
            )
            if has_top_k & (top_p < 1):
                total = _sum_mass(row_ptr, chosen_ptr, num_chosen, best, scale, num_tokens, cut, UNIT, GROUP, BLOCK)
                least = _take_share(top_p, total)
                cut = _find_cut(
                    row_ptr, chosen_ptr, num_chosen, best, scale, num_tokens, False, least, cut, UNIT, GROUP, BLOCK
                )
            cut = tl.minimum(cut, reach)
            total = _sum_mass(row_ptr, chosen_ptr, num_chosen, best, scale, num_tokens, cut, UNIT, GROUP, BLOCK)
            target = (point * total.to(tl.float64)).to(tl.int64)
            token = _pick(row_ptr, chosen_ptr, num_chosen, best, scale, num_tokens, cut, target, UNIT, GROUP, BLOCK)
        else:
            target = (point * total.to(tl.float64)).to(tl.int64)
            ends = tl.cumsum(masses, axis=0)
            before = tl.max(tl.where(ends <= target, ends, 0), axis=0)
            group = tl.sum((ends <= target).to(tl.int32), axis=0)
            tokens = group * GROUP + tl.arange(0, GROUP)
            depth = _load_depths(row_ptr, tokens, best, scale, num_tokens)
            ends = before + tl.cumsum(tl.where(depth <= reach, _weigh(depth, UNIT), 0), axis=0)
            token = group * GROUP + tl.sum((ends <= target).to(tl.int32), axis=0)
    tl.store(token_ids_ptr + row, token.to(tl.int64))


def draw_tokens(
    scores: torch.Tensor, best: torch.Tensor, drawn: torch.Tensor, token_ids: torch.Tensor, *, unit: int
) -> None:
    """Write the tokens that are drawn of rows of scores [N, V] to `token_ids` int64 [N]. best: [N], greatest of each.

    drawn: int64 [D, 6], for each draw the row, the uniform number times 2 ** 33, the bits of top_p (1: off), top_k (V
    or more: off), and the bits of log2(e) / temperature and of -log2(min_p), float32. A token weighs `unit` times its
    probability over that of the best, cut off to a whole number.
    """
    (num_draws, num_tokens), device = (len(drawn), scores.shape[1]), scores.device
    assert scores.stride(1) == 1 and best.stride(0) == 1 and token_ids.stride(0) == 1
    num_groups = triton.cdiv(num_tokens, GROUP)
    nearest = torch.empty(num_draws, num_groups, dtype=torch.float32, device=device)
    masses = torch.empty(num_draws, num_groups, dtype=torch.int64, device=device)
    chosen = torch.empty(num_draws, num_groups, dtype=torch.int32, device=device)
    survey_kernel[(triton.cdiv(num_groups, GROUPS_PER_PROGRAM), num_draws)](
        scores,
        best,
        drawn,
        nearest,
        masses,
        scores.stride(0),
        num_tokens,
        num_groups,
        UNIT=unit,
        GROUP=GROUP,
        GROUPS=GROUPS_PER_PROGRAM,
        num_warps=4,
    )
    draw_kernel[(num_draws,)](
        scores,
        best,
        drawn,
        nearest,
        masses,
        chosen,
        token_ids,
        scores.stride(0),
        num_tokens,
        num_groups,
        UNIT=unit,
        DEEPEST=unit.bit_length(),
        GROUP=GROUP,
        BLOCK=SEARCH_BLOCK,
        ALL_GROUPS=triton.next_power_of_2(num_groups),
        num_warps=SEARCH_WARPS,
    )
