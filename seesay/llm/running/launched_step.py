"""A step that is being computed, and what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from seesay.device.streams import Stopwatch
from seesay.device.transfers import HostCopy
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.step_plan import DraftCounts, Row, StepPlan
from seesay.llm.running.sampler import Draws, Sampled, make_not_finite_error
from seesay.llm.running.step_input import StepRows
from seesay.values.prompt_logprobs import PromptLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionOutputs:
    """Float32 CPU `values` [n, vocab or hidden] of n positions of a sequence, from `start`."""

    start: int
    values: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """Outputs of one row beside its tokens.

    logprobs: for each sampled token {token id: logprob}, of itself and others, when asked for.
    prompt_logprobs: of the prompt tokens at positions start + 1, start + 2, …, when asked for and there are any.
    logits, hidden_states (after the last norm): when asked for; with 'generation' of the sampling position only.
    hidden_sum: float32 [hidden] on the CPU, the sum of the row's hidden states, or the last of them, when the sequence
        is pooled. token_vectors: one of each of its tokens, when they are pooled so.
    A sequence that was preempted is computed again, so the same positions may come a second time.
    """

    seq_id: int
    start: int
    logprobs: tuple[Mapping[int, float], ...] = ()
    prompt_logprobs: PromptLogprobs | None = None
    logits: PositionOutputs | None = None
    hidden_states: PositionOutputs | None = None
    hidden_sum: torch.Tensor | None = None
    token_vectors: PositionOutputs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """token_ids: by sequence id, the tokens that were sampled: what `Scheduler.commit_step` takes. rows: what some rows
    gave beside that. errors: by sequence id, of the rows that failed. not_finite: those among them that computed
    something that is not finite. seconds: how long the device computed the step; None when nothing was computed, or
    something beside it. drafted: of the rows for which the runner proposed."""

    token_ids: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    rows: tuple[RowResult, ...] = ()
    errors: Mapping[int, RequestError] = field(default_factory=dict)
    not_finite: frozenset[int] = frozenset()
    seconds: float | None = None
    drafted: Mapping[int, DraftCounts] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class LaunchedStep:
    """A step whose forward pass was launched. `ModelRunner.sample` and `ModelRunner.collect` come next.

    logits: [n, vocab], of the places behind which a token is chosen, in their order; None when there are none.
    slots: int64 [n], those of the rows that sample, on the device, where no row has drafts. greedy: the greatest logits
    and the ids of these, where a graph found them: `logits`, `slots`, `greedy` and `faults` then are good until the
    next launch.
    outputs: by sequence id, what rows gave beside tokens. faults: those of the step's tokens, in the rows' order (see
    `ModelInput`). faults_copy: the same on their way to the host; None where the draws tell of them. stopwatch: stopped
    when the step was sampled. jumps: see `TokenMasks`. drafted: see `StepResult`.
    """

    step: StepRows
    dtype: torch.dtype
    logits: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    greedy: tuple[torch.Tensor, torch.Tensor] | None = None
    outputs: Mapping[int, RowResult] = field(default_factory=dict)
    faults: torch.Tensor | None = None
    faults_copy: HostCopy | None = None
    draws: Draws | None = None
    stopwatch: Stopwatch | None = None
    is_sampled: bool = False
    jumps: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    drafted: Mapping[int, DraftCounts] = field(default_factory=dict)

    def take_jumps(self, jumps: Mapping[int, tuple[int, ...]]) -> None:
        """Let the row table know what some rows sample, and the tokens that come behind that: the next step may begin
        with them before this one is collected."""
        self.jumps = jumps
        self.learn(jumps)

    def learn(self, token_ids: Mapping[int, tuple[int, ...]]) -> None:
        """Let the row table know what some rows sampled, by sequence id."""
        for row, member in zip(self.step.rows, self.step.members, strict=True):
            if row.samples and row.seq_id in token_ids:
                member.record(row.start + row.num_known, token_ids[row.seq_id])

    def collect(self) -> StepResult:
        """Return the results of all rows, once; the row table learns the tokens. Raises what went wrong on the
        device."""
        assert self.is_sampled, "sample comes before collect"
        not_finite = self._find_faulty()
        if not (not_finite or self.outputs) and (sampled_ids := self._collect_plain()) is not None:
            return StepResult(token_ids=sampled_ids, seconds=self._seconds(), drafted=self.drafted)
        undefined = {row.seq_id for row in self.outputs.values() if _has_nan(row.prompt_logprobs)}
        choices = iter(() if self.draws is None else self.draws.collect())
        sampled: dict[int, tuple[int, ...]] = {}
        outputs = dict(self.outputs)
        errors: dict[int, RequestError] = {}
        for row, member in zip(self.step.rows, self.step.members, strict=True):
            error: RequestError | None = None
            token_ids: tuple[int, ...] = ()
            logprobs: tuple[Mapping[int, float], ...] = ()
            if row.samples:
                token_ids, logprobs, error = take_choices(row, choices)
                if error is not None and error.code is ErrorCode.INTERNAL:
                    not_finite.add(row.seq_id)
            if row.seq_id in not_finite and error is None:
                error = make_not_finite_error("keys and values", self.dtype)
            elif row.seq_id in undefined and error is None:
                error = make_not_finite_error("logits", self.dtype)
            if error is not None:
                errors[row.seq_id] = error
                outputs.pop(row.seq_id, None)
                continue
            if not row.samples:
                continue
            found = self.jumps.get(row.seq_id, token_ids) if self.jumps else token_ids
            assert found[0] == token_ids[0], (row, found, token_ids)
            sampled[row.seq_id] = found
            member.record(row.start + row.num_known, found)
            if logprobs:
                result = outputs.get(row.seq_id) or RowResult(seq_id=row.seq_id, start=row.start)
                outputs[row.seq_id] = replace(result, logprobs=logprobs)
        return StepResult(
            token_ids=sampled,
            rows=tuple(outputs.values()),
            errors=errors,
            not_finite=frozenset(not_finite),
            seconds=self._seconds(),
            drafted=self.drafted,
        )

    def _seconds(self) -> float | None:
        return None if self.stopwatch is None else self.stopwatch.seconds()

    def _collect_plain(self) -> dict[int, tuple[int, ...]] | None:
        """Return what the rows sampled, where these give one token each and nothing else; the row table learns it.
        Else None: most steps are so, and of many rows."""
        if self.draws is None or self.step.has_drafts or (token_ids := self.draws.collect_ids()) is None:
            return None
        sampled: dict[int, tuple[int, ...]] = {}
        rows, members = self.step.rows, self.step.members
        for place, token_id in zip(self.step.sampling.tolist(), token_ids, strict=True):
            row = rows[place]
            found: tuple[int, ...] = (token_id,)
            if self.jumps and row.seq_id in self.jumps:
                found = self.jumps[row.seq_id]
                assert found[0] == token_id, (row, found, token_id)
            sampled[row.seq_id] = found
            members[place].record(row.start + row.num_tokens, found)
        return sampled

    def _find_faulty(self) -> set[int]:
        """The sequences whose rows left something not finite in the KV cache."""
        if self.faults_copy is None:
            return set()
        [faults] = self.faults_copy.wait()
        is_faulty = np.isnan(faults.numpy())
        if not is_faulty.any():
            return set()
        rows = self.step.rows
        starts = np.cumsum([0, *(row.num_tokens for row in rows)])
        return {row.seq_id for i, row in enumerate(rows) if is_faulty[starts[i] : starts[i + 1]].any()}


class BegunStep(NamedTuple):
    """The result of `ModelRunner.step`: the plan without the rows that cannot be computed; its step, None where
    no row is left; and by sequence id the errors of the rows that it left out."""

    plan: StepPlan
    launched: LaunchedStep | None
    errors: Mapping[int, RequestError]


def take_choices(
    row: Row, choices: Iterator[Sampled]
) -> tuple[tuple[int, ...], tuple[Mapping[int, float], ...], RequestError | None]:
    """Take the choices for a row that samples. Returns its new tokens, which are one and one more for each draft that
    is accepted, their log-probabilities where they were asked for, and the error of the first one. Behind a later error
    nothing is taken: it comes again with the next step."""
    if not row.drafts:
        return _take_choice(next(choices))
    first, *others = [next(choices) for _ in range(1 + len(row.drafts))]
    if first.token_id is None:
        return (), (), first.error
    accepted = [first]
    for draft, choice in zip(row.drafts, others, strict=True):
        if accepted[-1].token_id != draft or choice.error is not None:
            break
        accepted.append(choice)
    token_ids, logprobs, _ = zip(*map(_take_choice, accepted), strict=True)
    return tuple(chain.from_iterable(token_ids)), tuple(chain.from_iterable(logprobs)), None


def _take_choice(choice: Sampled) -> tuple[tuple[int, ...], tuple[Mapping[int, float], ...], RequestError | None]:
    token_ids = () if choice.token_id is None else (choice.token_id,)
    return token_ids, () if choice.logprobs is None else (choice.logprobs,), choice.error


def _has_nan(logprobs: PromptLogprobs | None) -> bool:
    return logprobs is not None and bool(np.isnan(logprobs.values).any())
