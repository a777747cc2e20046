"""Collects what rows ask for beside tokens: logits, hidden states, prompt log-probabilities. Waits for the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.decoder import Decoder
from seesay.llm.plans.step_plan import Row
from seesay.llm.running.greatest import compute_logprobs, find_greatest
from seesay.llm.running.launched_step import PositionOutputs, RowResult
from seesay.llm.running.row_table import RowState
from seesay.llm.running.step_input import StepRows
from seesay.values.prompt_logprobs import NO_TOKEN, PromptLogprobs

LOGITS_CHUNK_ROWS = 256
"""Positions whose logits are made at once when a whole prompt's are asked for."""


def has_outputs(step: StepRows) -> bool:
    """Return whether a row of a step gives more than tokens."""
    return any(row.start < member.output_end for row, member in zip(step.rows, step.members, strict=True))


def collect_outputs(
    decoder: Decoder, step: StepRows, hidden: torch.Tensor, sampled_logits: torch.Tensor | None
) -> dict[int, RowResult]:
    """By sequence id, the outputs of the rows that ask for any. hidden: [T, hidden], of all tokens of the step.
    sampled_logits: [n, vocab], of the rows that sample."""
    outputs: dict[int, RowResult] = {}
    first = num_sampled = 0
    for row, member in zip(step.rows, step.members, strict=True):
        own = hidden[first : first + row.num_tokens]
        first += row.num_tokens
        logits = None
        if row.samples and sampled_logits is not None:
            logits = sampled_logits[num_sampled : num_sampled + 1]
            num_sampled += 1 + len(row.drafts)
        if row.start < member.output_end:
            outputs[row.seq_id] = _collect_row(decoder, row, member, own, logits)
    return outputs


def _collect_row(
    decoder: Decoder, row: Row, member: RowState, hidden: torch.Tensor, sampled_logits: torch.Tensor | None
) -> RowResult:
    params, last = member.params, row.start + row.num_tokens - 1
    logits = hidden_states = None
    if params.output_logits == "all":
        parts = [_to_host(part) for _, part in _logits_in_chunks(decoder, hidden, member.adapter_slot)]
        logits = PositionOutputs(start=row.start, values=torch.cat(parts))
    elif params.output_logits == "generation" and sampled_logits is not None:
        logits = PositionOutputs(start=last, values=_to_host(sampled_logits))
    if params.output_last_hidden_state == "all":
        hidden_states = PositionOutputs(start=row.start, values=_to_host(hidden))
    elif params.output_last_hidden_state == "generation" and row.samples:
        hidden_states = PositionOutputs(start=last, values=_to_host(hidden[-1:]))
    return RowResult(
        seq_id=row.seq_id,
        start=row.start,
        prompt_logprobs=_prompt_logprobs(decoder, row, member, hidden),
        logits=logits,
        hidden_states=hidden_states,
        hidden_sum=_pool(params.pooling, hidden),
        token_vectors=_project(decoder, row, hidden) if params.pooling == "tokens" else None,
    )


def _pool(pooling: str | None, hidden: torch.Tensor) -> torch.Tensor | None:
    """Return the part of an embedding that a row adds. hidden: [n, hidden], of its positions."""
    if pooling not in ("mean", "last"):
        return None
    return _to_host(hidden[-1] if pooling == "last" else hidden.float().sum(dim=0))


def _project(decoder: Decoder, row: Row, hidden: torch.Tensor) -> PositionOutputs:
    """Return the vectors of the row's tokens. hidden: [n, hidden], of its positions."""
    vectors = decoder.project(hidden) if isinstance(decoder, ComposedDecoder) else hidden
    return PositionOutputs(start=row.start, values=_to_host(vectors))


def _prompt_logprobs(decoder: Decoder, row: Row, member: RowState, hidden: torch.Tensor) -> PromptLogprobs | None:
    """Log-probabilities of the prompt tokens behind the row's positions; None if no request wants them, or there are
    none."""
    count = member.params.prompt_logprobs
    stop = min(row.start + row.num_tokens, member.num_prompt_tokens - 1)
    if count is None or stop <= row.start:
        return None
    size = decoder.traits.vocab_size
    ids = _find_targets(member, row.start + 1, stop + 1, size)
    targets = torch.from_numpy(ids.clip(min=0)).to(hidden.device)
    pieces = [
        _compare_tokens(logits, targets[first : first + len(logits), None], min(count, size))
        for first, logits in _logits_in_chunks(decoder, hidden[: len(targets)], member.adapter_slot)
    ]
    values, best, ranks = (torch.cat(parts).cpu().numpy() for parts in zip(*pieces, strict=True))
    return PromptLogprobs(ids=np.concatenate([ids[:, None], best], axis=1), values=values, ranks=ranks)


def _compare_tokens(logits: torch.Tensor, targets: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """Of logits [n, vocab] and tokens int64 [n, 1]: float32 [n, 1 + count], the log-probabilities of the tokens and the
    greatest ones; the ids of these [n, count]; int32 [n], the ranks of the tokens."""
    own = logits.gather(1, targets)
    ranks = (logits > own).sum(dim=1, dtype=torch.int32) + 1
    best = find_greatest(logits, count)
    return compute_logprobs(logits).gather(1, torch.cat([targets, best], dim=1)), best, ranks


def _find_targets(member: RowState, start: int, stop: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """Prompt tokens `start` … `stop` - 1; `NO_TOKEN` where an embedding is or the model has no logit for the token."""
    ids = member.token_ids[start:stop].copy()
    ids[ids >= vocab_size] = NO_TOKEN
    for item in member.items:
        first, last = np.searchsorted(item.slots, (start, stop))
        ids[item.slots[first:last] - start] = NO_TOKEN
    return ids


def _logits_in_chunks(decoder: Decoder, hidden: torch.Tensor, slot: int) -> Iterator[tuple[int, torch.Tensor]]:
    """(first position, logits) of a few positions at a time: those of a whole prompt may not fit in memory."""
    for first in range(0, len(hidden), LOGITS_CHUNK_ROWS):
        chunk = hidden[first : first + LOGITS_CHUNK_ROWS]
        yield first, make_logits(decoder, chunk, None if slot < 0 else np.full(len(chunk), slot, dtype=np.int64))


def make_logits(decoder: Decoder, hidden: torch.Tensor, slots: npt.NDArray[np.int64] | None) -> torch.Tensor:
    """Return the logits of hidden states, of which the first have the adapters in `slots`."""
    if slots is None:
        return decoder.logits(hidden)
    assert isinstance(decoder, ComposedDecoder), "no other decoder has adapters"
    return decoder.logits(hidden, slots)


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A float32 copy on the CPU that may outlive the step."""
    return values.to("cpu", torch.float32, copy=True)
