"""Sorts the rows of a step by what they ask of the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.backends import has_kernels
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import Row, TokenMasks
from seesay.llm.running.device_rows import token_place
from seesay.llm.running.logit_changes import start_counts
from seesay.llm.running.row_table import RowState
from seesay.llm.running.sampler import count_ordered
from seesay.llm.running.sampling_row import LogitsProcessor, MaskedRows, SamplingRow
from seesay.llm.running.step_input import StepRows

_Processors = Mapping[int, tuple[LogitsProcessor, ...]]
_Masks = Mapping[int, Sequence[int]]
"""By sequence id, the numbers of its rows in `TokenMasks.bits`, in the order of its tokens."""


class SortedRows(NamedTuple):
    """The rows of a step by what the sampler has to do: indices among the places behind which a token is chosen
    (`StepRows.find_sampled`), ascending.

    rows: those that ask for more than the most likely token, a draw, or one of these from what a mask allows.
    masked: those with such a mask. drawn: those that ask for a draw, `rows` aside.
    """

    rows: dict[int, SamplingRow]
    masked: MaskedRows | None
    drawn: list[int]


def sort_rows(step: StepRows, masks: TokenMasks | None, processors: _Processors, *, vocab_size: int) -> SortedRows:
    """Sort the rows of a step."""
    allowed = _number_masks(masks, vocab_size)
    rows: dict[int, SamplingRow] = {}
    drawn: list[int] = []
    masked: list[tuple[int, int, int]] = []
    index, has_drafts = 0, step.has_drafts
    for place in step.sampling.tolist():
        row, member = step.rows[place], step.members[place]
        params, own = member.params, allowed.get(row.seq_id, ())
        changes = processors.get(row.seq_id, ()) if processors else ()
        if changes or not _is_simple(params, own, has_drafts=has_drafts):
            for made in _make_rows(row, member, masks, own, changes, vocab_size):
                rows[index] = made
                index += 1
            continue
        if own:
            masked.append((own[0], index, place))
        if params.is_drawn:
            drawn.append(index)
        index += 1 + len(row.drafts)
    return SortedRows(rows, _join_masked(step, masks, masked, vocab_size), drawn)


def count_drawn(step: StepRows, drawn: Sequence[int], vocab_size: int, device: torch.device) -> int:
    """Return `count_ordered` of the rows `drawn` that `sort_rows` found; 0 where kernels draw, which do without."""
    if has_kernels(device):
        return 0
    at = step.sampling[drawn].tolist()  # where rows are drawn so, none has drafts
    return count_ordered((step.members[i].params for i in at), vocab_size)


def _is_simple(params: SamplingParams, own: Sequence[int], *, has_drafts: bool) -> bool:
    """Whether no more is asked than the most likely token, a draw, or, with `own` masks, one of these from what they
    allow."""
    if own:
        return params.is_plainly_masked and not has_drafts
    return params.is_plain or (params.is_plainly_drawn and not has_drafts)


def _join_masked(
    step: StepRows, masks: TokenMasks | None, masked: list[tuple[int, int, int]], vocab_size: int
) -> MaskedRows | None:
    """Return rows that are masked alone, by (number of the mask, index, place among the rows of the step). They are in
    the order of the masks, so that these, megabytes where rows are many, go to the device as they are."""
    if masks is None or not masked:
        return None
    numbers, indices, places = zip(*sorted(masked), strict=True)
    bits = masks.bits if len(numbers) == len(masks.bits) else masks.bits[list(numbers)]

    def find(i: int) -> SamplingRow:
        row, member = step.rows[places[i]], step.members[places[i]]
        return _make_rows(row, member, masks, (numbers[i],), (), vocab_size)[0]

    return MaskedRows(indices, bits, find)


def _number_masks(masks: TokenMasks | None, vocab_size: int) -> _Masks:
    if masks is None:
        return {}
    num_rows, num_words = masks.bits.shape
    assert num_rows == len(masks.seq_ids) and num_words >= -(-vocab_size // 32), masks.bits.shape
    if len(set(masks.seq_ids)) == num_rows:
        return {seq_id: (number,) for number, seq_id in enumerate(masks.seq_ids)}
    found: dict[int, list[int]] = {}
    for number, seq_id in enumerate(masks.seq_ids):
        found.setdefault(seq_id, []).append(number)
    return found


def _make_rows(
    row: Row,
    member: RowState,
    masks: TokenMasks | None,
    numbers: Sequence[int],
    processors: tuple[LogitsProcessor, ...],
    vocab_size: int,
) -> list[SamplingRow]:
    """Return what the sampler needs for the next token of a row, and for the one behind each of its drafts. numbers:
    those of its masks."""
    params = member.params
    if member.counts is None and params.has_penalties:
        member.counts = start_counts(member.token_ids[: member.num_prompt_tokens], params, vocab_size)
    own: list[npt.NDArray[np.int32]] = [] if masks is None else [masks.bits[number] for number in numbers]
    found = []
    for num_drafts in range(1 + len(row.drafts)):
        stop = row.start + row.num_known + num_drafts
        counts = member.counts
        if counts is not None and num_drafts:
            counts = counts.copy()  # a draft does not count before it is accepted
        found.append(
            SamplingRow(
                seed=member.seed,
                params=params,
                token_ids=member.token_ids[:stop],
                num_generated=stop - member.num_prompt_tokens,
                pending=token_place(member.slot) if stop > member.num_known else -1,
                counts=counts,
                mask=own[num_drafts] if num_drafts < len(own) else None,
                processors=processors,
            )
        )
    return found
