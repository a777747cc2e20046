"""Chooses the next token of each row from its logits: rows of different options in one batch, vectorised.

Order as in Transformers: repetition penalty, what is added (presence and frequency penalties, biases), banned ids, the
request's own processors; then temperature, top-k, top-p, min-p. A draw is the inverse of the cumulative distribution
over the vocabulary at one uniform number, which is a hash of the sequence's seed and the token's index and of nothing
else: what shares the batch cannot change it, and every rank draws the same.

The host waits for the device in `Draws.collect` only: until then the chosen ids are the device's alone, and the next
draw may build on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from seesay.device.backends import has_kernels
from seesay.device.transfers import HostCopy, upload
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.no_token_error import make_no_token_error
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.float_products import Scaled, multiply, split_floats
from seesay.llm.running.greatest import VECTORS, FindGreatest, compute_logprobs, find_any_greatest, find_best
from seesay.llm.running.logit_changes import adjust_logits, avoid_tokens, changes_values, mask_rows
from seesay.llm.running.sampling_row import MaskedRows, SamplingRow

WEIGHT_OF_BEST = 1 << 40
"""The likeliest token's share in a draw. Shares are whole numbers: their sums are exact, so that no order of adding,
and no device, changes a choice."""

LOG2_E = math.log2(math.e)
OFF = 1 << 31
"""More than any vocabulary has tokens."""
DRAW_OPTIONS = 4
"""Words of `draw_words`."""
POINT_BITS = 33

_U64 = np.uint64
_BITS_OF_ONE = 1023 << 52
"""Of float64. Lesser numbers, from 0 on, have lesser bits."""


class Sampled(NamedTuple):
    """The choice of one row: a token id, or the error that ends the request. `logprobs` has the chosen token and the
    most likely ones, natural logarithms of the model's own distribution (before temperature and filters)."""

    token_id: int | None
    logprobs: Mapping[int, float] | None = None
    error: RequestError | None = None


class Draws:
    """The choices of one step. token_ids: int64 [N] on the device; some id of the vocabulary where a row failed."""

    def __init__(
        self,
        rows: Mapping[int, SamplingRow],
        token_ids: torch.Tensor,
        best: torch.Tensor,
        *,
        dtype: torch.dtype,
        masked: MaskedRows | None = None,
        errors: Mapping[int, RequestError] | None = None,
        logprobs: tuple[torch.Tensor, ...] = (),
    ) -> None:
        self.token_ids = token_ids
        self._masked = masked
        self._rows = rows
        self._dtype = dtype
        self._errors = errors or {}
        self._copy = HostCopy(token_ids, best, *logprobs)

    def collect_ids(self) -> list[int] | None:
        """The token ids alone, once the device has made them; None where a row has an error, or more to tell."""
        token_ids, best, *logprobs = self._copy.wait()
        if self._errors or logprobs or not best.isfinite().all():
            return None
        chosen: list[int] = token_ids.tolist()
        return chosen

    def collect(self) -> list[Sampled]:
        """One choice per row, once the device has made them. A row with no finite logit has an error."""
        token_ids, best, *logprobs = (part.tolist() for part in self._copy.wait())
        errors = dict(self._errors)
        for index, value in enumerate(best):
            if not math.isfinite(value) and index not in errors:
                errors[index] = _explain_best(self._find_row(index), value, self._dtype)
        report = _report_logprobs(self._rows, token_ids, *logprobs) if logprobs else {}
        return [
            Sampled(token_id=None, error=errors[i]) if i in errors else Sampled(token_id=t, logprobs=report.get(i))
            for i, t in enumerate(token_ids)
        ]

    def _find_row(self, index: int) -> SamplingRow | None:
        """The options of a row that has any."""
        if self._masked is not None and index in self._masked.at:
            return self._masked.find(self._masked.at.index(index))
        return self._rows.get(index)


def choose_tokens(
    logits: torch.Tensor,
    rows: Mapping[int, SamplingRow],
    *,
    masked: MaskedRows | None = None,
    previous: torch.Tensor | None = None,
    greedy_ids: tuple[torch.Tensor, torch.Tensor] | None = None,
    draws: torch.Tensor | None = None,
    find_greatest: FindGreatest = find_any_greatest,
    num_ordered: int = 0,
) -> Draws:
    """One choice per row of logits [N, V]. A row with no finite logit left fails; others are unharmed.

    rows: by index, in ascending order, those of which more is asked than the most likely token, or a draw, of all or of
    those that a mask allows (`masked`).
    draws: of rows of which no more than a draw is asked (see `make_draws`), on the device. num_ordered:
    `count_ordered` of these; kernels do without.
    previous: int64 [P], what rows' `pending` points into. greedy_ids: each row's greatest logit [N] and its id [N],
    where they are known already. find_greatest: finds the tokens whose log-probabilities are reported. Waits for the
    device only when a row has logits processors.
    """
    num_rows = logits.shape[0]
    adjusted, avoiding, drawn = _sort_out(rows, has_kernels=has_kernels(logits.device))
    errors: dict[int, RequestError] = {}
    scores = logits if masked is None else mask_rows(logits.clone(), masked.at, masked.bits)
    if adjusted and len(adjusted) == num_rows:
        best, token_ids = _choose_adjusted(logits.clone(), list(rows.values()), previous, errors)
    elif greedy_ids is None or masked is not None:
        best, token_ids = find_best(scores)
    else:
        best, token_ids = greedy_ids[0], greedy_ids[1].clone()
    if drawn:
        _draw_rows(scores, best, rows, drawn, token_ids)
    if draws is not None:
        choose_drawn(scores, best, draws, token_ids, num_ordered)
    if avoiding:
        best = best.clone()
        avoid_tokens(logits, best, token_ids, rows, avoiding)
    if 0 < len(adjusted) < num_rows:
        best = _choose_some(logits, rows, adjusted, previous, best, token_ids, errors)
    logprobs = _compute_logprobs(logits, rows, token_ids, find_greatest)
    return Draws(rows, token_ids, best, dtype=logits.dtype, masked=masked, errors=errors, logprobs=logprobs)


def _choose_some(
    logits: torch.Tensor,
    rows: Mapping[int, SamplingRow],
    adjusted: list[int],
    previous: torch.Tensor | None,
    best: torch.Tensor,
    token_ids: torch.Tensor,
    errors: dict[int, RequestError],
) -> torch.Tensor:
    """Write the choices of the rows `adjusted` to `token_ids`. Returns `best` with theirs."""
    own_errors: dict[int, RequestError] = {}
    [at] = upload([np.array(adjusted)], logits.device)
    own_rows = [rows[i] for i in adjusted]
    own_best, own_ids = _choose_adjusted(logits.index_select(0, at), own_rows, previous, own_errors)
    token_ids.index_copy_(0, at, own_ids)
    errors |= {adjusted[i]: error for i, error in own_errors.items()}
    return best.float().index_copy(0, at, own_best.float())


def _pick_dtype(rows: Iterable[SamplingRow], logits: torch.Tensor) -> torch.dtype:
    """The type in which the logits of some rows are changed."""
    return torch.float32 if changes_values(rows) else logits.dtype


def _choose_adjusted(
    scores: torch.Tensor,
    rows: Sequence[SamplingRow],
    previous: torch.Tensor | None,
    errors: dict[int, RequestError],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The greatest logit of each row and its choice, after `scores` [N, V], a copy of its own, were adjusted."""
    scores = scores.to(_pick_dtype(rows, scores))
    errors |= adjust_logits(scores, rows, previous)
    best, token_ids = find_best(scores)
    drawn = [i for i, row in enumerate(rows) if row.params.is_drawn]
    if drawn:
        _draw_rows(scores, best, dict(enumerate(rows)), drawn, token_ids)
    return best, token_ids


def _draw_rows(
    scores: torch.Tensor,
    best: torch.Tensor,
    rows: Mapping[int, SamplingRow],
    drawn: list[int],
    token_ids: torch.Tensor,
) -> None:
    """Write the ids that are drawn of the rows `drawn` to `token_ids`."""
    picked = [rows[i] for i in drawn]
    params = [row.params for row in picked]
    seeds = np.array([row.seed & 0xFFFFFFFFFFFFFFFF for row in picked], dtype=_U64)
    points = make_points(seeds, np.array([row.num_tokens for row in picked], dtype=_U64))
    [draws] = upload([make_draws(drawn, points, params)], scores.device)
    choose_drawn(scores, best, draws, token_ids, count_ordered(params, scores.shape[-1]))


def choose_drawn(
    scores: torch.Tensor, best: torch.Tensor, draws: torch.Tensor, token_ids: torch.Tensor, num_ordered: int
) -> None:
    """Write the ids that are drawn of rows of scores [N, V] to `token_ids`."""
    if has_kernels(scores.device):
        from seesay.kernels import sampling

        sampling.draw_tokens(scores, best, draws, token_ids, unit=WEIGHT_OF_BEST)
    else:
        draw_tokens(scores, best, draws, token_ids, most=num_ordered)


def make_points(seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """One uniform number in (0, 1) per (seed, counter), times 2 ** POINT_BITS, which is odd, by two rounds of
    splitmix64 (Steele, Lea, Flood 2014)."""
    mixed = _splitmix64(_splitmix64(seeds) + counters)
    return (mixed >> _U64(32)).astype(np.int64) * 2 + 1


def _splitmix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + _U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def _sort_out(rows: Mapping[int, SamplingRow], *, has_kernels: bool) -> tuple[list[int], list[int], list[int]]:
    """(The rows whose logits change, those that avoid banned ids, the rest that are drawn.)"""
    adjusted: list[int] = []
    avoiding: list[int] = []
    drawn: list[int] = []
    for index, row in rows.items():
        if not row.is_adjusted:
            if row.params.is_drawn:
                drawn.append(index)
        elif has_kernels and not (
            row.params.is_drawn or row.params.changes_scores or row.is_restricted or row.bans_repeats
        ):
            avoiding.append(index)
        else:
            adjusted.append(index)
    return adjusted, avoiding, drawn


def draw_words(params: Sequence[SamplingParams]) -> npt.NDArray[np.int64]:
    """Return int64 [N, DRAW_OPTIONS]: the bits of top_p (1: off) as float64; top_k (`OFF`: off); and in powers of two
    the bits of what a unit of score means, and of how far below the best min-p reaches, as float32."""
    words = np.empty((len(params), DRAW_OPTIONS), dtype=np.int64)
    words[:, 0] = np.array([p.top_p for p in params], dtype=np.float64).view(np.int64)
    words[:, 1] = [min(p.top_k or OFF, OFF) for p in params]
    reaches = [-math.log2(p.min_p) if p.min_p > 0 else math.inf for p in params]
    with np.errstate(over="ignore"):  # of the least temperatures a unit means infinity
        depths = np.array([[LOG2_E / p.temperature for p in params], reaches]).astype(np.float32)
    words[:, 2:] = depths.view(np.int32).T
    return words


def make_draws(rows: Sequence[int], points: Iterable[int], params: Sequence[SamplingParams]) -> npt.NDArray[np.int64]:
    """int64 [N, 2 + DRAW_OPTIONS], for each draw its row, its number of `make_points` and its `draw_words`."""
    draws = np.empty((len(rows), 2 + DRAW_OPTIONS), dtype=np.int64)
    draws[:, 0], draws[:, 1] = rows, np.fromiter(points, np.int64, count=len(rows))
    draws[:, 2:] = draw_words(params)
    return draws


def count_ordered(params: Iterable[SamplingParams], size: int) -> int:
    """Return how many of its likeliest of `size` tokens a draw by any of these has to have in order."""
    kept = ((p.top_p, min(p.top_k or size, size)) for p in params)
    return max(top_k if top_p < 1 or top_k < size else 1 for top_p, top_k in kept)


def draw_tokens(
    scores: torch.Tensor, best: torch.Tensor, draws: torch.Tensor, token_ids: torch.Tensor, *, most: int
) -> None:
    """Write the tokens that are drawn of rows of scores [N, V] to token_ids int64 [N]. `best` [N] is the greatest of
    each, `draws` made by `make_draws`, `most` the number of tokens that any of them has to have in order.

    A token stays if fewer than top_k tokens are likelier, and these have less than top_p of the probability that top-k
    left, and it is at least min_p times as likely as the best: the filters of Transformers, where equally likely tokens
    stay or go together. Of those that stay one is drawn in the order of the vocabulary.
    """
    size = scores.shape[-1]
    at = draws[:, 0]
    points, top_p, top_k = Scaled(draws[:, 1, None], -POINT_BITS), split_floats(draws[:, 2, None]), draws[:, 3, None]
    scale, reach = (draws[:, i, None].int().view(torch.float32) for i in (4, 5))
    depths = (best.index_select(0, at).float()[:, None] - scores.index_select(0, at).float()) * scale
    # Whole vectors of the CPU: elements behind the last one would be computed by another function.
    depths = F.pad(depths, (0, -size % VECTORS), value=math.inf)
    weights = (depths.neg().exp2() * WEIGHT_OF_BEST).long()
    nearest, order = depths.topk(most, dim=-1, largest=False)
    last = nearest.gather(1, top_k.clamp(max=most) - 1)
    weights.masked_fill_((depths > last) & (top_k < size), 0)
    own = weights.gather(1, order)
    _, least = multiply(top_p, weights.sum(dim=-1, keepdim=True))
    num_kept = (own.cumsum(dim=-1) - own < least).sum(dim=-1, keepdim=True)
    last = nearest.gather(1, (num_kept - 1).clamp_(min=0))
    weights.masked_fill_((depths > last) & (draws[:, 2, None] < _BITS_OF_ONE), 0)
    weights.masked_fill_(depths > reach, 0)
    ends = weights.cumsum(dim=-1)
    targets, _ = multiply(points, ends[:, -1:])
    chosen = torch.searchsorted(ends, targets, right=True)[:, 0]
    token_ids.index_copy_(0, at, chosen.clamp_(max=size - 1))


def _explain_best(row: SamplingRow | None, best: float, dtype: torch.dtype) -> RequestError:
    """The error of a row whose greatest logit is not finite."""
    if row is not None and best == -math.inf and (names := _find_bans(row)):
        return make_no_token_error(names, num_generated=row.num_generated)
    return make_not_finite_error("logits", dtype)


def _find_bans(row: SamplingRow) -> list[str]:
    """The options that may have forbidden every token. What others forbid together is found before the step
    (`engine/core/grammars/row_matcher.py`), so processors come first, and a mask that is left is a grammar's."""
    params = row.params
    if row.processors:
        return ["logits_processors"]
    found = [
        name
        for name in ("allowed_token_ids", "bad_token_ids", "bad_words", "no_repeat_ngram_size")
        if getattr(params, name)
    ]
    if row.num_generated < params.min_new_tokens:
        found.append("min_new_tokens")
    if row.mask is not None and not params.has_restrictions:
        found.append("response_format")
    return found


def make_not_finite_error(what: str, dtype: torch.dtype) -> RequestError:
    """The error of a request for which the model computed `what`, in `dtype`, with NaN or infinity in it."""
    name = str(dtype).removeprefix("torch.")
    cure = "if it does so again, look for damaged weights in the checkpoint"
    if dtype is torch.float16:
        cure = "if it does so again, its range is too small: try dtype='float32' or 'bfloat16'"
    message = f"the model's {what}, computed in {name}, are not finite. None of it is kept; send the request again, and"
    return RequestError(ErrorCode.INTERNAL, f"{message} {cure}")


def _compute_logprobs(
    logits: torch.Tensor, rows: Mapping[int, SamplingRow], token_ids: torch.Tensor, find_greatest: FindGreatest
) -> tuple[torch.Tensor, ...]:
    """Of the rows that ask, in order: the chosen token's logprob [R], the greatest ones [R, most] and their ids."""
    asking = [i for i, row in rows.items() if row.params.logprobs is not None]
    if not asking:
        return ()
    most = min(max(rows[i].params.logprobs or 0 for i in asking), logits.shape[-1])
    [at] = upload([np.array(asking)], logits.device)
    picked = logits.index_select(0, at)
    greatest = find_greatest(picked, most)
    logprobs = compute_logprobs(picked)
    own = logprobs.gather(1, token_ids.index_select(0, at)[:, None])[:, 0]
    return own, logprobs.gather(1, greatest), greatest


def _report_logprobs(
    rows: Mapping[int, SamplingRow],
    token_ids: Sequence[int],
    own: Sequence[float],
    greatest: Sequence[Sequence[float]],
    ids: Sequence[Sequence[int]],
) -> dict[int, dict[int, float]]:
    """{row: {token id: logprob}} for the rows that ask, most likely first; the chosen token is always there."""
    asking = [(i, row.params.logprobs) for i, row in rows.items() if row.params.logprobs is not None]
    report = {}
    for (index, count), chosen, values, best_ids in zip(asking, own, greatest, ids, strict=True):
        report[index] = dict(zip(best_ids[:count], values[:count], strict=True))
        report[index].setdefault(token_ids[index], chosen)
    return report
