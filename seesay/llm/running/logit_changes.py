"""Changes single logits of single rows, before their tokens are chosen: penalties, biases, bans, masks, processors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from seesay.device.backends import has_kernels
from seesay.device.transfers import upload, upload_stacked
from seesay.errors import ErrorCode, RequestError, describe
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.sampling_row import SamplingRow
from seesay.llm.running.token_counts import TokenCounts

_MASKED_TOGETHER = 64
"""Rows whose masks are applied at once."""


def changes_values(rows: Iterable[SamplingRow]) -> bool:
    """Whether any logit becomes another number: bans and masks only take some away."""
    return any(row.params.changes_scores or row.processors for row in rows)


def adjust_logits(
    scores: torch.Tensor, rows: Sequence[SamplingRow], previous: torch.Tensor | None
) -> dict[int, RequestError]:
    """Apply, in place, what changes single logits of single rows. The errors of rows whose processors failed.

    scores: [N, V], float32 where `changes_values` says so.
    """
    penalized = [i for i, row in enumerate(rows) if row.params.has_penalties]
    if penalized:
        _penalize(scores, rows, penalized, previous)
    _shift(scores, rows)
    _ban(scores, rows)
    _ban_repeats(scores, rows, previous)
    _mask(scores, rows)
    errors = {}
    for index, row in enumerate(rows):
        if row.processors:
            try:
                scores[index] = _process(scores[index], row)
            except Exception as error:
                message = f"a logits processor failed: {describe(error)}"
                errors[index] = RequestError(ErrorCode.INVALID_REQUEST, message, "logits_processors")
    if any(row.processors for row in rows):  # they have seen what is forbidden, and may have changed it
        _ban(scores, rows)
        _ban_repeats(scores, rows, previous)
        _mask(scores, rows)
    return errors


def _penalize(
    scores: torch.Tensor,
    rows: Sequence[SamplingRow],
    penalized: list[int],
    previous: torch.Tensor | None,
) -> None:
    """Repetition penalty: divide the positive and multiply the negative logits of tokens seen before (Keskar et al.
    2019). Of those generated, then take off count · frequency + (count > 0) · presence (OpenAI's API reference)."""
    tensors = upload(_list_penalties(rows, penalized), scores.device)
    tensors.append(tensors[-1] if previous is None else previous)
    if has_kernels(scores.device):
        from seesay.kernels import logit_changes

        logit_changes.penalize_tokens(scores, *tensors)
    else:
        penalize_tokens(scores, *tensors)


def _list_penalties(rows: Sequence[SamplingRow], penalized: list[int]) -> list[npt.NDArray[Any]]:
    """Return what `penalize_tokens` takes, from its `rows` to its `pending`."""
    picked = [rows[i] for i in penalized]
    counted = [_count(row) for row in picked]
    params = [row.params for row in picked]
    return [
        np.array(penalized),
        np.cumsum([0, *(len(tokens.ids) for tokens in counted)]),
        np.concatenate([tokens.ids for tokens in counted]),
        np.concatenate([tokens.counts for tokens in counted]),
        np.array([(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params], np.float64),
        np.array([row.pending for row in picked]),
    ]


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
    has_late = pending >= 0
    late = previous[pending.clamp(min=0)].to(ids.dtype)
    is_late = (has_late[owner] & (ids == late[owner])).to(counts.dtype)
    late_counts = torch.zeros_like(pending, dtype=counts.dtype).index_add_(0, owner, counts * is_late) + 1
    # Each row has one place more: that of its late token, else its first one again, else one that stays as it is.
    # So the host waits for no number of new tokens. A place that comes twice gets the same value.
    first_ids, first_counts = (F.pad(each, (0, 1))[starts[:-1]] for each in (ids, counts))
    is_idle = ~has_late & (starts.diff() == 0)
    first_counts = first_counts.masked_fill(is_idle, 0)
    owner = torch.cat([owner, torch.arange(len(rows), device=rows.device)])
    ids = torch.cat([ids, torch.where(has_late, late, first_ids)])
    counts = torch.cat([counts + is_late, torch.where(has_late, late_counts, first_counts)])
    repetition, presence, frequency = penalties.masked_fill(is_idle[:, None], 1.0)[owner].unbind(dim=1)
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


def _ban_repeats(scores: torch.Tensor, rows: Sequence[SamplingRow], previous: torch.Tensor | None) -> None:
    """Forbid the tokens that would complete an n-gram a second time."""
    found = [_list_repeats(row, index, scores.shape[-1]) for index, row in enumerate(rows) if row.bans_repeats]
    arrays = [np.concatenate(parts) for parts in zip(*found)]
    if not arrays or not len(arrays[0]):
        return
    places, needed, pending = upload(arrays, scores.device)
    ban_repeats(scores, places, needed, pending, pending if previous is None else previous)


def _list_repeats(row: SamplingRow, index: int, size: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the places, the needed tokens and the pending places of `ban_repeats` for a row of scores [N, size]."""
    needed, followers = row.find_repeats()
    is_token = followers < size  # placeholders have no logit
    places = followers[is_token] + index * size
    return places, needed[is_token], np.full(len(places), row.pending)


def ban_repeats(
    scores: torch.Tensor, places: torch.Tensor, needed: torch.Tensor, pending: torch.Tensor, previous: torch.Tensor
) -> None:
    """Set to -inf, in place, `places` int64 [P] of scores [N, V] as a flat array, where `needed` is -1 or the token
    that `pending` points to in `previous`, all of them int64 [P]. A place may come more than once."""
    late = previous[pending.clamp(min=0)]
    amounts = torch.where((needed < 0) | (needed == late), float("-inf"), 0.0).to(scores.dtype)
    scores.view(-1).scatter_add_(0, places, amounts)


def _mask(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Forbid the tokens that the rows' masks do not allow."""
    masked = [index for index, row in enumerate(rows) if row.mask is not None]
    if not masked:
        return
    _mask_places(
        scores, masked, upload_stacked([mask for row in rows if (mask := row.mask) is not None], scores.device)
    )


def mask_rows(scores: torch.Tensor, at: Sequence[int], bits: npt.NDArray[np.int32]) -> torch.Tensor:
    """Forbid, in place, what `bits` int32 [R, ceil(V / 32) or more] do not allow in the rows `at` of scores [N, V]; and
    return these. `bits` must not change before the device is done: it copies them where they are pinned."""
    _mask_places(scores, at, torch.from_numpy(bits).to(scores.device, non_blocking=True))
    return scores


def _mask_places(scores: torch.Tensor, places: Sequence[int], bits: torch.Tensor) -> None:
    [at] = upload([np.array(places)], scores.device)
    if has_kernels(scores.device):
        from seesay.kernels import token_masks

        token_masks.mask_tokens(scores, at, bits)
    else:
        mask_tokens(scores, at, bits)


def mask_tokens(scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    """Set to -inf, in place, what `bits` int32 [R, ceil(V / 32) or more] forbid in `rows` int64 [R] of scores [N, V].

    Bits are read a byte at a time (CPUs and GPUs are little-endian), for a few rows at a time, so that little memory is
    needed beside the scores.
    """
    size = scores.shape[-1]
    powers = 1 << torch.arange(8, dtype=torch.uint8, device=scores.device)
    for first in range(0, len(rows), _MASKED_TOGETHER):
        some = slice(first, first + _MASKED_TOGETHER)
        octets = bits[some].contiguous().view(torch.uint8)
        is_forbidden = (octets[:, :, None] & powers == 0).flatten(1)[:, :size]
        at = rows[some]
        scores.index_copy_(0, at, scores.index_select(0, at).masked_fill_(is_forbidden, float("-inf")))


def avoid_tokens(
    logits: torch.Tensor,
    best: torch.Tensor,
    token_ids: torch.Tensor,
    rows: Mapping[int, SamplingRow],
    avoiding: list[int],
) -> None:
    """Turn the choices of greedy rows from the tokens that they may not have."""
    from seesay.kernels import logit_changes

    banned = [rows[i].params.banned_token_ids(rows[i].num_generated) for i in avoiding]
    starts = np.cumsum([0, *map(len, banned)])
    ids = np.fromiter(chain.from_iterable(banned), dtype=np.int64, count=starts[-1])
    logit_changes.avoid_tokens(logits, best, token_ids, *upload([np.array(avoiding), starts, ids], logits.device))


def _process(scores: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    token_ids = torch.from_numpy(row.token_ids.copy())
    for processor in row.processors:
        result = processor(token_ids, scores.clone())
        if not isinstance(result, torch.Tensor) or result.shape != scores.shape:
            shape = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise ValueError(f"it must return logits of shape {list(scores.shape)}, not {shape}")
        if result.isnan().any() and not scores.isnan().any():
            raise ValueError("it must return numbers, and returned NaN")
        scores = result.to(scores)
    return scores
