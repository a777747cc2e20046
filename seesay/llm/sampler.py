"""Chooses the next token of each row from its logits: rows of different options in one batch, vectorised.

Order as in Transformers: repetition penalty, what is added (presence and frequency penalties, biases), banned ids, the
request's own processors; then temperature, top-k, top-p, min-p. A draw is the inverse of the cumulative distribution
at one uniform number, which is a hash of the request's seed and the token's index and of nothing else: what shares the
batch cannot change it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seesay.errors import ErrorCode, RequestError
from seesay.llm.sampling_params import SamplingParams

_U64 = np.uint64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """What the sampler must know of a row. `token_ids` int64 [T]: prompt and generated; `num_generated` of them are."""

    seq_id: int
    params: SamplingParams
    token_ids: npt.NDArray[np.int64]
    num_generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The choice of one row: a token id, or the error that ends the request. `logprobs` has the chosen token and the
    most likely ones, natural logarithms of the model's own distribution (before temperature and filters)."""

    token_id: int | None
    logprobs: Mapping[int, float] | None = None
    error: RequestError | None = None


class Sampler:
    """Requests without a seed get one of their own from the process's random number."""

    def __init__(self, process_seed: int | None = None) -> None:
        self._process_seed = secrets.randbits(63) if process_seed is None else process_seed

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
        """One choice per row of logits [N, V]. A row with no finite logit left gets an error; others are unharmed."""
        errors: dict[int, RequestError] = {}
        scores = logits
        if any(map(_is_adjusted, rows)):
            scores = _adjust(logits.float().clone(), rows, errors)
        best, greedy_ids = scores.max(dim=-1)
        token_ids: list[int] = greedy_ids.tolist()
        for index, value in enumerate(best.tolist()):
            if not math.isfinite(value) and index not in errors:
                errors[index] = _not_finite(rows[index], logits.dtype)
        drawn = [i for i, row in enumerate(rows) if not row.params.greedy and i not in errors]
        if drawn:
            for index, token_id in zip(drawn, self._draw(scores, rows, drawn), strict=True):
                token_ids[index] = token_id
        logprobs = _report_logprobs(logits, rows, token_ids)
        return [
            Sampled(token_id=None, error=errors[i]) if i in errors else Sampled(token_id=t, logprobs=logprobs.get(i))
            for i, t in enumerate(token_ids)
        ]

    def _draw(self, scores: torch.Tensor, rows: Sequence[SamplingRow], drawn: list[int]) -> list[int]:
        """Token ids of the rows `drawn`. Whether a row is sorted first depends on its own options only, because the
        order of the tokens decides which of them a uniform number means."""
        seeds = [self._seed(rows[i]) for i in drawn]
        uniform = dict(zip(drawn, make_uniform(seeds, [len(rows[i].token_ids) for i in drawn]).tolist(), strict=True))
        chosen: dict[int, int] = {}
        for is_sorted in (False, True):
            part = [i for i in drawn if _needs_sorting(rows[i].params) is is_sorted]
            if not part:
                continue
            params = [rows[i].params for i in part]
            picked = scores[torch.tensor(part, device=scores.device)].float()
            points = torch.tensor([uniform[i] for i in part], dtype=torch.float64, device=scores.device)
            ids = draw_sorted(picked, params, points) if is_sorted else draw_unsorted(picked, params, points)
            chosen.update(zip(part, ids.tolist(), strict=True))
        return [chosen[i] for i in drawn]

    def _seed(self, row: SamplingRow) -> int:
        if row.params.seed is not None:
            return row.params.seed
        return self._process_seed ^ (row.seq_id * 0x9E3779B97F4A7C15)


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


def draw_unsorted(scores: torch.Tensor, params: Sequence[SamplingParams], points: torch.Tensor) -> torch.Tensor:
    """Token ids int64 [N] for float32 scores [N, V] and points [N] in (0, 1): temperature and min-p only."""
    scores = scores / _column([p.temperature for p in params], scores)
    _filter_min_p(scores, params, scores.amax(dim=-1, keepdim=True))
    return _invert(scores, points)


def draw_sorted(scores: torch.Tensor, params: Sequence[SamplingParams], points: torch.Tensor) -> torch.Tensor:
    """As `draw_unsorted`, with top-k and top-p: they keep a beginning of the tokens sorted by score."""
    size = scores.shape[-1]
    kept = [min(p.top_k or size, size) for p in params]
    most = max(kept)
    ordered, ids = scores.topk(most, dim=-1) if most < size else scores.sort(dim=-1, descending=True, stable=True)
    ordered = ordered / _column([p.temperature for p in params], scores)
    if min(kept) < most:
        ranks = torch.arange(most, device=scores.device)
        ordered = ordered.masked_fill(ranks >= torch.tensor(kept, device=scores.device)[:, None], float("-inf"))
    if any(p.top_p < 1 for p in params):
        probs = ordered.softmax(dim=-1)
        above = probs.cumsum(dim=-1) - probs
        dropped = above >= _column([p.top_p if p.top_p < 1 else 2.0 for p in params], scores)
        dropped[:, 0] = False
        ordered = ordered.masked_fill(dropped, float("-inf"))
    _filter_min_p(ordered, params, ordered[:, :1])
    return ids.gather(1, _invert(ordered, points)[:, None])[:, 0]


def _needs_sorting(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]


def _filter_min_p(scores: torch.Tensor, params: Sequence[SamplingParams], best: torch.Tensor) -> None:
    """Drop, in place, tokens less likely than min_p times the best one: p < m · p_best ⇔ score < score_best + ln m."""
    if any(p.min_p > 0 for p in params):
        margin = _column([float(np.log(p.min_p)) if p.min_p > 0 else -np.inf for p in params], scores)
        scores.masked_fill_(scores < best + margin, float("-inf"))


def _invert(scores: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Index of the token at which the cumulative distribution passes each point. Never one of probability 0."""
    cumulative = scores.softmax(dim=-1).to(torch.float64).cumsum(dim=-1)
    targets = points[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_(max=scores.shape[-1] - 1)


def _is_adjusted(row: SamplingRow) -> bool:
    params = row.params
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or params.bad_token_ids
        or params.logits_processors
        or row.num_generated < params.min_new_tokens
    )


def _adjust(scores: torch.Tensor, rows: Sequence[SamplingRow], errors: dict[int, RequestError]) -> torch.Tensor:
    """Apply, in place, what changes single logits of single rows."""
    _penalize(scores, [(i, row) for i, row in enumerate(rows) if row.params.repetition_penalty != 1.0])
    _shift(scores, rows)
    _ban(scores, rows)
    for index, row in enumerate(rows):
        if row.params.logits_processors:
            try:
                scores[index] = _process(scores[index], row)
            except Exception as error:
                message = f"a logits processor failed: {type(error).__name__}: {error}"
                errors[index] = RequestError(ErrorCode.INVALID_REQUEST, message, "logits_processors")
    return scores


def _penalize(scores: torch.Tensor, penalized: list[tuple[int, SamplingRow]]) -> None:
    """Divide the positive and multiply the negative logits of tokens seen before (Keskar et al. 2019)."""
    if not penalized:
        return
    seen = [np.unique(row.token_ids) for _, row in penalized]
    seen = [ids[ids < scores.shape[-1]] for ids in seen]
    sizes = [len(ids) for ids in seen]
    at_row = torch.from_numpy(np.repeat([i for i, _ in penalized], sizes)).to(scores.device)
    at_id = torch.from_numpy(np.concatenate(seen)).to(scores.device)
    penalty = np.repeat([row.params.repetition_penalty for _, row in penalized], sizes).astype(np.float32)
    by = torch.from_numpy(penalty).to(scores.device)
    old = scores[at_row, at_id]
    scores[at_row, at_id] = torch.where(old < 0, old * by, old / by)


def _shift(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Add biases, and take penalties off tokens that were generated: logit - count · frequency - (count > 0) · presence
    (the definition in OpenAI's API reference)."""
    at_row: list[npt.NDArray[np.int64]] = []
    at_id: list[npt.NDArray[np.int64]] = []
    by: list[npt.NDArray[np.float32]] = []
    for index, row in enumerate(rows):
        for ids, amounts in (_find_penalties(row), _find_biases(row.params)):
            if len(ids):
                known = ids < scores.shape[-1]
                at_row.append(np.full(known.sum(), index, dtype=np.int64))
                at_id.append(ids[known])
                by.append(amounts[known])
    if by:
        places = tuple(torch.from_numpy(np.concatenate(part)).to(scores.device) for part in (at_row, at_id))
        scores.index_put_(places, torch.from_numpy(np.concatenate(by)).to(scores.device), accumulate=True)


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
        scores.view(-1).index_fill_(0, torch.tensor(places, device=scores.device), float("-inf"))


def _find_penalties(row: SamplingRow) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Ids of the generated tokens, and what is added to their logits."""
    params = row.params
    if not row.num_generated or not (params.presence_penalty or params.frequency_penalty):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
    ids, counts = np.unique(row.token_ids[-row.num_generated :], return_counts=True)
    return ids, (-params.presence_penalty - params.frequency_penalty * counts).astype(np.float32)


def _find_biases(params: SamplingParams) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    ids = np.array([token_id for token_id, _ in params.logit_bias], dtype=np.int64)
    return ids, np.array([bias for _, bias in params.logit_bias], dtype=np.float32)


def _process(scores: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    token_ids = torch.from_numpy(row.token_ids.copy())
    for processor in row.params.logits_processors:
        result = processor(token_ids, scores.clone())
        if not isinstance(result, torch.Tensor) or result.shape != scores.shape:
            shape = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise ValueError(f"it must return logits of shape {list(scores.shape)}, not {shape}")
        scores = result.to(scores)
    return scores


def _not_finite(row: SamplingRow, dtype: torch.dtype) -> RequestError:
    if row.params.bad_token_ids or row.params.logits_processors or row.params.min_new_tokens:
        return RequestError(
            ErrorCode.INVALID_REQUEST,
            "no token is left to choose: bad_token_ids, min_new_tokens or logits_processors forbid all of them",
            "bad_token_ids",
        )
    cure = "its range is small: try dtype='float32' or 'bfloat16'"
    if dtype is not torch.float16:
        cure = "look for damaged weights in the checkpoint"
    name = str(dtype).removeprefix("torch.")
    return RequestError(ErrorCode.INTERNAL, f"the model's logits, computed in {name}, are not finite: {cure}")


def _report_logprobs(
    logits: torch.Tensor, rows: Sequence[SamplingRow], token_ids: Sequence[int]
) -> dict[int, dict[int, float]]:
    """{row: {token id: logprob}} for the rows that ask, most likely first; the chosen token is always there."""
    asking = [(i, row.params.logprobs) for i, row in enumerate(rows) if row.params.logprobs is not None]
    if not asking:
        return {}
    at = torch.tensor([i for i, _ in asking], device=logits.device)
    logprobs = logits[at].float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor([[token_ids[i]] for i, _ in asking], device=logits.device))[:, 0].tolist()
    values, ids = logprobs.topk(min(max(n for _, n in asking), logits.shape[-1]), dim=-1)
    report = {}
    for (index, count), own, top_values, top_ids in zip(asking, chosen, values.tolist(), ids.tolist(), strict=True):
        report[index] = dict(zip(top_ids[:count], top_values[:count], strict=True))
        report[index].setdefault(token_ids[index], own)
    return report
