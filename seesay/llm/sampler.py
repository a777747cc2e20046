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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import HostCopy, upload
from seesay.errors import ErrorCode, RequestError, describe
from seesay.llm.sampling_params import SamplingParams
from seesay.llm.token_counts import TokenCounts

WEIGHT_OF_BEST = 1 << 40
"""The likeliest token's share in a draw. Shares are whole numbers: their sums are exact, so that no order of adding,
and no device, changes a choice."""

LOG2_E = math.log2(math.e)
OFF = 1 << 31
"""More than any vocabulary has tokens."""

_U64 = np.uint64

_MASKED_TOGETHER = 64
"""Rows whose masks are applied at once."""

LogitsProcessor = Callable[[Any, Any], Any]
"""f(token_ids [T], logits [V]) -> logits [V]: a request's own change of its logits."""


class SamplingRow(NamedTuple):
    """What the sampler must know of a row of which more is asked than the most likely token.

    seed: of its draws, 64 bits. token_ids: int64 [T], prompt and generated. num_generated: generated tokens, the
        pending one too.
    pending: where the ids of the step before have the row's last token, when the host does not know it yet and
        `token_ids` lacks it; else -1.
    counts: of its tokens so far, where it has penalties; may lag behind, and is brought up to date.
    mask: int32 [ceil(V / 32)], one bit per token, 1 where it is allowed (see `TokenMasks`); None allows all.
    processors: called in order, when all else is done to the logits.
    """

    seed: int
    params: SamplingParams
    token_ids: npt.NDArray[np.int64]
    num_generated: int
    pending: int = -1
    counts: TokenCounts | None = None
    mask: npt.NDArray[np.int32] | None = None
    processors: tuple[LogitsProcessor, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + (self.pending >= 0)

    @property
    def generated_ids(self) -> npt.NDArray[np.int64]:
        """The generated tokens that the host knows."""
        num_known = self.num_generated - (self.pending >= 0)
        return self.token_ids[len(self.token_ids) - num_known :]

    @property
    def is_adjusted(self) -> bool:
        """Whether single logits are changed before this token is chosen."""
        params = self.params
        is_held_back = self.num_generated < params.min_new_tokens and bool(params.ending_token_ids)
        return self.is_restricted or params.changes_logits or is_held_back

    @property
    def is_restricted(self) -> bool:
        """Whether the host says, for this token alone, what may come."""
        return self.mask is not None or bool(self.processors)


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
        errors: Mapping[int, RequestError] | None = None,
        logprobs: tuple[torch.Tensor, ...] = (),
    ) -> None:
        self.token_ids = token_ids
        self._rows = rows
        self._dtype = dtype
        self._errors = errors or {}
        self._copy = HostCopy(token_ids, best, *logprobs)

    def collect(self) -> list[Sampled]:
        """One choice per row, once the device has made them. A row with no finite logit has an error."""
        token_ids, best, *logprobs = (part.tolist() for part in self._copy.wait())
        if not self._errors and not logprobs and all(map(math.isfinite, best)):
            return [Sampled(token_id=token_id) for token_id in token_ids]
        errors = dict(self._errors)
        for index, value in enumerate(best):
            if not math.isfinite(value) and index not in errors:
                errors[index] = _explain_best(self._rows.get(index), value, self._dtype)
        report = _report_logprobs(self._rows, token_ids, *logprobs) if logprobs else {}
        return [
            Sampled(token_id=None, error=errors[i]) if i in errors else Sampled(token_id=t, logprobs=report.get(i))
            for i, t in enumerate(token_ids)
        ]


def choose_tokens(
    logits: torch.Tensor,
    rows: Mapping[int, SamplingRow],
    *,
    previous: torch.Tensor | None = None,
    greedy_ids: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Draws:
    """One choice per row of logits [N, V]. A row with no finite logit left fails; others are unharmed.

    rows: by index, in ascending order, those of which more is asked than the most likely token.
    previous: int64 [P], what rows' `pending` points into. greedy_ids: each row's greatest logit [N] and its id [N],
    where they are known already. Waits for the device only when a row has logits processors.
    """
    num_rows = logits.shape[0]
    adjusted, avoiding, drawn = _sort_out(rows, has_kernels=_has_kernels(logits.device))
    errors: dict[int, RequestError] = {}
    if adjusted and len(adjusted) == num_rows:
        scores = logits.to(torch.float32, copy=True)
        best, token_ids = _choose_adjusted(scores, list(rows.values()), previous, errors)
    elif greedy_ids is None:
        best, token_ids = logits.max(dim=-1)
    else:
        best, token_ids = greedy_ids[0], greedy_ids[1].clone()
    if drawn:
        _draw_some(logits, best, rows, drawn, token_ids)
    if avoiding:
        best = best.clone()
        _avoid(logits, best, token_ids, rows, avoiding)
    if 0 < len(adjusted) < num_rows:
        own_errors: dict[int, RequestError] = {}
        [at] = upload([np.array(adjusted)], logits.device)
        own_best, own_ids = _choose_adjusted(
            logits.index_select(0, at).float(), [rows[i] for i in adjusted], previous, own_errors
        )
        best = best.float().index_copy(0, at, own_best)
        token_ids.index_copy_(0, at, own_ids)
        errors = {adjusted[i]: error for i, error in own_errors.items()}
    logprobs = _compute_logprobs(logits, rows, token_ids)
    return Draws(rows, token_ids, best, dtype=logits.dtype, errors=errors, logprobs=logprobs)


def _choose_adjusted(
    scores: torch.Tensor,
    rows: Sequence[SamplingRow],
    previous: torch.Tensor | None,
    errors: dict[int, RequestError],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The greatest logit of each row and its choice, after `scores` float32 [N, V] were adjusted in place."""
    errors |= _adjust(scores, rows, previous)
    best, token_ids = scores.max(dim=-1)
    drawn = [i for i, row in enumerate(rows) if row.params.is_drawn]
    if drawn:
        _draw_some(scores, best, dict(enumerate(rows)), drawn, token_ids)
    return best, token_ids


def _draw_some(
    scores: torch.Tensor,
    best: torch.Tensor,
    rows: Mapping[int, SamplingRow],
    drawn: list[int],
    token_ids: torch.Tensor,
) -> None:
    """Write the ids of the rows `drawn` of scores [N, V] to `token_ids`."""
    picked = [rows[i] for i in drawn]
    points = make_uniform([row.seed for row in picked], [row.num_tokens for row in picked])
    [draws] = upload([make_draws(drawn, points, [row.params for row in picked])], scores.device)
    if _has_kernels(scores.device):
        from seesay.kernels import sampling

        sampling.draw_tokens(scores, best, draws, token_ids, unit=WEIGHT_OF_BEST)
    else:
        most = max(_count_ordered(row.params, scores.shape[-1]) for row in picked)
        draw_tokens(scores, best, draws, token_ids, most=most)


def _adjust(
    scores: torch.Tensor, rows: Sequence[SamplingRow], previous: torch.Tensor | None
) -> dict[int, RequestError]:
    """Apply, in place, what changes single logits of single rows. The errors of rows whose processors failed."""
    penalized = [i for i, row in enumerate(rows) if row.params.has_penalties]
    if penalized:
        _penalize(scores, rows, penalized, previous)
    _shift(scores, rows)
    _ban(scores, rows)
    _mask(scores, rows)
    errors = {}
    for index, row in enumerate(rows):
        if row.processors:
            try:
                scores[index] = _process(scores[index], row)
            except Exception as error:
                message = f"a logits processor failed: {describe(error)}"
                errors[index] = RequestError(ErrorCode.INVALID_REQUEST, message, "logits_processors")
    return errors


def _penalize(
    scores: torch.Tensor,
    rows: Sequence[SamplingRow],
    penalized: list[int],
    previous: torch.Tensor | None,
) -> None:
    """Repetition penalty: divide the positive and multiply the negative logits of tokens seen before (Keskar et al.
    2019). Of those generated, then take off count · frequency + (count > 0) · presence (OpenAI's API reference)."""
    picked = [rows[i] for i in penalized]
    counted = [_count(row) for row in picked]
    params = [row.params for row in picked]
    arrays = [
        np.array(penalized),
        np.cumsum([0, *(len(tokens.ids) for tokens in counted)]),
        np.concatenate([tokens.ids for tokens in counted]),
        np.concatenate([tokens.counts for tokens in counted]),
        np.array([(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params], np.float64),
        np.array([row.pending for row in picked]),
    ]
    tensors = upload(arrays, scores.device)
    tensors.append(tensors[-1] if previous is None else previous)
    if _has_kernels(scores.device):
        from seesay.kernels import sampling

        sampling.penalize_tokens(scores, *tensors)
    else:
        penalize_tokens(scores, *tensors)


def start_counts(prompt: npt.NDArray[np.int64], params: SamplingParams, size: int) -> TokenCounts | None:
    """Return the counts of a sequence that begins, for a vocabulary of `size`; None where no penalty asks for them.
    Tokens that have no logit (placeholders) do not count."""
    if not params.has_penalties:
        return None
    return TokenCounts(prompt[prompt < size] if params.repetition_penalty != 1.0 else prompt[:0])


def _count(row: SamplingRow) -> TokenCounts:
    """The row's counts with all tokens that the host knows."""
    assert row.counts is not None, "a row with penalties has counts"
    row.counts.extend(row.generated_ids)
    return row.counts


def make_uniform(seeds: Sequence[int], counters: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in (0, 1) per (seed, counter), by two rounds of splitmix64 (Steele, Lea, Flood 2014)."""
    seed = np.array([s & 0xFFFFFFFFFFFFFFFF for s in seeds], dtype=_U64)
    counter = np.array(counters, dtype=_U64)
    mixed = _splitmix64(_splitmix64(seed) + counter)
    return ((mixed >> _U64(32)).astype(np.float64) + 0.5) / 2.0**32


def _splitmix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + _U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


@cache
def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and find_spec("triton") is not None


def _sort_out(rows: Mapping[int, SamplingRow], *, has_kernels: bool) -> tuple[list[int], list[int], list[int]]:
    """(The rows whose logits change, those that avoid banned ids, the rest that are drawn.)"""
    adjusted: list[int] = []
    avoiding: list[int] = []
    drawn: list[int] = []
    for index, row in rows.items():
        if not row.is_adjusted:
            if row.params.is_drawn:
                drawn.append(index)
        elif has_kernels and not (row.params.is_drawn or row.params.changes_scores or row.is_restricted):
            avoiding.append(index)
        else:
            adjusted.append(index)
    return adjusted, avoiding, drawn


def make_draws(
    rows: Sequence[int], points: Iterable[float], params: Sequence[SamplingParams]
) -> npt.NDArray[np.float64]:
    """float64 [N, 6], for each draw its row, its uniform number, top_p (1: off), top_k (`OFF`: off), and in powers
    of two what a unit of score means and how far below the best min-p reaches."""
    return np.array(
        [
            (
                row,
                point,
                p.top_p,
                p.top_k or OFF,
                LOG2_E / p.temperature,
                -math.log2(p.min_p) if p.min_p > 0 else math.inf,
            )
            for row, point, p in zip(rows, points, params, strict=True)
        ]
    )


def _count_ordered(params: SamplingParams, size: int) -> int:
    """How many of its likeliest tokens a row has to have in order."""
    return min(params.top_k or size, size) if params.top_k or params.top_p < 1 else 1


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
    at = draws[:, 0].long()
    points, top_p, top_k = (draws[:, i, None] for i in (1, 2, 3))
    scale, reach = (draws[:, i, None].float() for i in (4, 5))
    depths = (best.index_select(0, at).float()[:, None] - scores.index_select(0, at).float()) * scale
    weights = (depths.neg().exp2() * WEIGHT_OF_BEST).long()
    nearest, order = depths.topk(most, dim=-1, largest=False)
    last = nearest.gather(1, top_k.clamp(max=most).long() - 1)
    weights.masked_fill_((depths > last) & (top_k < size), 0)
    own = weights.gather(1, order)
    least = (top_p * weights.sum(dim=-1, keepdim=True)).ceil().long()
    num_kept = (own.cumsum(dim=-1) - own < least).sum(dim=-1, keepdim=True)
    last = nearest.gather(1, (num_kept - 1).clamp_(min=0))
    weights.masked_fill_((depths > last) & (top_p < 1), 0)
    weights.masked_fill_(depths > reach, 0)
    ends = weights.cumsum(dim=-1)
    targets = (points * ends[:, -1:]).long()
    chosen = torch.searchsorted(ends, targets, right=True)[:, 0]
    token_ids.index_copy_(0, at, chosen.clamp_(max=size - 1))


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
    owner = torch.repeat_interleave(starts.diff(), output_size=len(ids))
    late = torch.where(pending >= 0, previous[pending.clamp(min=0)], -1).to(ids.dtype)
    is_late = (ids == late[owner]).to(counts.dtype)
    is_known = torch.zeros_like(late).index_add_(0, owner, is_late)
    new = ((late >= 0) & (is_known == 0)).nonzero()[:, 0]
    owner, ids = torch.cat([owner, new]), torch.cat([ids, late[new]])
    counts = torch.cat([counts + is_late, torch.ones_like(late[new])])
    repetition, presence, frequency = penalties[owner].unbind(dim=1)
    places = (rows[owner], ids)
    old, by = scores[places], repetition.float()
    amounts = torch.where(counts > 0, -presence - frequency * counts, 0.0).float()
    scores[places] = torch.where(old < 0, old * by, old / by) + amounts


def _shift(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Add biases."""
    size = scores.shape[-1]
    biases = [
        (index * size + token_id, bias)
        for index, row in enumerate(rows)
        for token_id, bias in row.params.logit_bias
        if token_id < size
    ]
    if biases:
        places, by = zip(*biases, strict=True)
        at, amounts = upload([np.array(places), np.array(by, dtype=np.float32)], scores.device)
        scores.view(-1).scatter_add_(0, at, amounts)


def _ban(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Forbid tokens: those of all rows by one write, at their places in `scores` as a flat array."""
    size = scores.shape[-1]
    places = [
        index * size + token_id
        for index, row in enumerate(rows)
        for token_id in row.params.banned_token_ids(row.num_generated)
        if token_id < size
    ]
    if places:
        [at] = upload([np.array(places)], scores.device)
        scores.view(-1).index_fill_(0, at, float("-inf"))


def _mask(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Forbid the tokens that the rows' masks do not allow."""
    masked = [index for index, row in enumerate(rows) if row.mask is not None]
    if not masked:
        return
    bits = np.stack([mask for row in rows if (mask := row.mask) is not None])
    at, there, powers = upload([np.array(masked), bits, 1 << np.arange(8, dtype=np.uint8)], scores.device)
    mask_tokens(scores, at, there, powers)


def mask_tokens(scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor, powers: torch.Tensor) -> None:
    """Set to -inf, in place, what `bits` int32 [R, ceil(V / 32)] forbid in `rows` int64 [R] of scores float32 [N, V].

    powers: uint8 [8], those of 2. Bits are read a byte at a time (CPUs and GPUs are little-endian), for a few rows at a
    time, so that little memory is needed beside the scores.
    """
    size = scores.shape[-1]
    for first in range(0, len(rows), _MASKED_TOGETHER):
        some = slice(first, first + _MASKED_TOGETHER)
        octets = bits[some].contiguous().view(torch.uint8)
        is_forbidden = (octets[:, :, None] & powers == 0).flatten(1)[:, :size]
        at = rows[some]
        scores.index_copy_(0, at, scores.index_select(0, at).masked_fill_(is_forbidden, float("-inf")))


def _avoid(
    logits: torch.Tensor,
    best: torch.Tensor,
    token_ids: torch.Tensor,
    rows: Mapping[int, SamplingRow],
    avoiding: list[int],
) -> None:
    """Turn the choices of greedy rows from the tokens that they may not have."""
    from seesay.kernels import sampling

    banned = [rows[i].params.banned_token_ids(rows[i].num_generated) for i in avoiding]
    starts = np.cumsum([0, *map(len, banned)])
    ids = np.fromiter(chain.from_iterable(banned), dtype=np.int64, count=starts[-1])
    sampling.avoid_tokens(logits, best, token_ids, *upload([np.array(avoiding), starts, ids], logits.device))


def _process(scores: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    token_ids = torch.from_numpy(row.token_ids.copy())
    for processor in row.processors:
        result = processor(token_ids, scores.clone())
        if not isinstance(result, torch.Tensor) or result.shape != scores.shape:
            shape = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise ValueError(f"it must return logits of shape {list(scores.shape)}, not {shape}")
        scores = result.to(scores)
    return scores


def _explain_best(row: SamplingRow | None, best: float, dtype: torch.dtype) -> RequestError:
    """The error of a row whose greatest logit is not finite."""
    if (
        row is not None
        and best == -math.inf
        and (row.is_restricted or row.params.bad_token_ids or row.params.min_new_tokens)
    ):
        return RequestError(
            ErrorCode.INVALID_REQUEST,
            "no token is left to choose: bad_token_ids, min_new_tokens, a mask or logits_processors forbid all of them",
            "bad_token_ids",
        )
    return make_not_finite_error("logits", dtype)


def make_not_finite_error(what: str, dtype: torch.dtype) -> RequestError:
    """The error of a request for which the model computed `what`, in `dtype`, with NaN or infinity in it."""
    name = str(dtype).removeprefix("torch.")
    cure = "if it does so again, look for damaged weights in the checkpoint"
    if dtype is torch.float16:
        cure = "if it does so again, its range is too small: try dtype='float32' or 'bfloat16'"
    message = f"the model's {what}, computed in {name}, are not finite. None of it is kept; send the request again, and"
    return RequestError(ErrorCode.INTERNAL, f"{message} {cure}")


def _compute_logprobs(
    logits: torch.Tensor, rows: Mapping[int, SamplingRow], token_ids: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Of the rows that ask, in order: the chosen token's logprob [R], the greatest ones [R, most] and their ids."""
    asking = [i for i, row in rows.items() if row.params.logprobs is not None]
    if not asking:
        return ()
    most = min(max(rows[i].params.logprobs or 0 for i in asking), logits.shape[-1])
    [at] = upload([np.array(asking)], logits.device)
    picked = logits.index_select(0, at)
    greatest = picked.topk(most, dim=-1).indices
    logprobs = picked.float().log_softmax(dim=-1)
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
