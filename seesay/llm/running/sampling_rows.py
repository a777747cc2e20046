"""Sorts the rows of a step by what they ask of the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from seesay.llm.plans.step_plan import Row, TokenMasks
from seesay.llm.running.device_rows import token_place
from seesay.llm.running.logit_changes import start_counts
from seesay.llm.running.row_table import RowState
from seesay.llm.running.sampling_row import LogitsProcessor, SamplingRow
from seesay.llm.running.step_input import StepRows

_Masks = Mapping[int, Sequence[npt.NDArray[np.int32]]]
_Processors = Mapping[int, tuple[LogitsProcessor, ...]]


def sort_rows(
    step: StepRows, masks: TokenMasks | None, processors: _Processors, *, vocab_size: int
) -> tuple[dict[int, SamplingRow], list[int]]:
    """Return, of the places of a step behind which a token is chosen (`StepRows.find_sampled`), by index in these: the
    ones that ask for more than the most likely token or a draw, and the ones that ask for a draw alone."""
    allowed = _sort_masks(masks, vocab_size)
    rows: dict[int, SamplingRow] = {}
    drawn: list[int] = []
    index = 0
    for at in step.sampling.tolist():
        row, member = step.rows[at], step.members[at]
        params = member.params
        is_changed = row.seq_id in allowed or row.seq_id in processors
        if params.is_plain and not is_changed:
            index += 1 + len(row.drafts)
        elif params.is_plainly_drawn and not is_changed and not step.has_drafts:
            drawn.append(index)
            index += 1
        else:
            for sampling_row in _make_rows(row, member, allowed, processors, vocab_size):
                rows[index] = sampling_row
                index += 1
    return rows, drawn


def _sort_masks(masks: TokenMasks | None, vocab_size: int) -> _Masks:
    """Return the masks by sequence id, those of one in the order of its tokens."""
    found: dict[int, list[npt.NDArray[np.int32]]] = {}
    if masks is not None:
        assert masks.bits.shape == (len(masks.seq_ids), -(-vocab_size // 32)), masks.bits.shape
        for seq_id, bits in zip(masks.seq_ids, masks.bits, strict=True):
            found.setdefault(seq_id, []).append(bits)
    return found


def _make_rows(
    row: Row, member: RowState, allowed: _Masks, processors: _Processors, vocab_size: int
) -> list[SamplingRow]:
    """Return what the sampler needs for the next token of a row, and for the one behind each of its drafts."""
    params = member.params
    if member.counts is None and params.has_penalties:
        member.counts = start_counts(member.token_ids[: member.num_prompt_tokens], params, vocab_size)
    masks = allowed.get(row.seq_id, ())
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
                mask=masks[num_drafts] if num_drafts < len(masks) else None,
                processors=processors.get(row.seq_id, ()),
            )
        )
    return found
