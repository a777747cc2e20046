"""Collects what rows ask for beside tokens: logits, hidden states, prompt log-probabilities. Waits for the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from seesay.llm.launched_step import PositionOutputs, RowResult
from seesay.llm.models.decoder import Decoder
from seesay.llm.row_table import RowState
from seesay.llm.step_input import StepRows
from seesay.llm.step_plan import Row

LOGITS_CHUNK_ROWS = 256
"""Positions whose logits are made at once when a whole prompt's are asked for."""


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
            num_sampled += 1
        if not member.wants_token_only:
            outputs[row.seq_id] = _collect_row(decoder, row, member, own, logits)
    return outputs


def _collect_row(
    decoder: Decoder, row: Row, member: RowState, hidden: torch.Tensor, sampled_logits: torch.Tensor | None
) -> RowResult:
    params, last = member.params, row.start + row.num_tokens - 1
    logits = hidden_states = None
    if params.output_logits == "all":
        parts = [_to_host(part) for _, part in _logits_in_chunks(decoder, hidden)]
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
        prompt_logprobs=_prompt_logprobs(decoder, row, member, hidden) if params.prompt_logprobs else (),
        logits=logits,
        hidden_states=hidden_states,
        hidden_sum=None if params.pooling is None else _to_host(hidden.float().sum(dim=0)),
    )


def _prompt_logprobs(decoder: Decoder, row: Row, member: RowState, hidden: torch.Tensor) -> tuple[float, ...]:
    """Log-probabilities of the prompt tokens that follow the row's positions."""
    stop = min(row.start + row.num_tokens, member.num_prompt_tokens - 1)
    if stop <= row.start:
        return ()
    targets = torch.from_numpy(member.token_ids[row.start + 1 : stop + 1].copy()).to(hidden.device)
    pieces = [
        logits.float().log_softmax(dim=-1).gather(1, targets[first : first + len(logits), None])[:, 0]
        for first, logits in _logits_in_chunks(decoder, hidden[: len(targets)])
    ]
    return tuple(torch.cat(pieces).tolist())


def _logits_in_chunks(decoder: Decoder, hidden: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(first position, logits) of a few positions at a time: those of a whole prompt may not fit in memory."""
    for first in range(0, len(hidden), LOGITS_CHUNK_ROWS):
        yield first, decoder.logits(hidden[first : first + LOGITS_CHUNK_ROWS])


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A float32 copy on the CPU that may outlive the step."""
    return values.to("cpu", torch.float32, copy=True)
