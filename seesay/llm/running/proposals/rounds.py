"""Proposes and verifies tokens again and again on the device: the host waits once for several such rounds.

A round lets a chain propose tokens behind the last known one of each sequence, has the model compute all of them, and
counts on the device those which the model chose itself; the next round begins behind these. Lengths, tokens and what
the layer lacks of the model's states are advanced where they are, so that no round waits for the host. Only sequences
of which the likeliest token is wanted, and no more, take part: what they are proposed depends on no rule of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import proxy

import numpy as np
import torch

from seesay.device.transfers import HostCopy, upload
from seesay.errors import RequestError
from seesay.llm.plans.step_plan import DraftCounts, StepPlan
from seesay.llm.running.device_rows import LENGTH, TOKEN
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.proposals.chain import MissingTokens, VerifiedTokens
from seesay.llm.running.sampler import make_not_finite_error
from seesay.llm.running.step_input import StepRows, arrange_rows

if TYPE_CHECKING:
    from seesay.llm.running.proposals.chain import ProposalChain
    from seesay.llm.running.runner import ModelRunner


class DraftRoom(NamedTuple):
    """Drafts that a row may have in all rounds of a step, and in one of them."""

    num_drafts: int
    num_proposed: int


class RoundSource(Protocol):
    """Knows what a layer has computed of sequences."""

    def begin_rounds(self, seq_ids: Sequence[int]) -> MissingTokens | None:
        """Return what the layer lacks of these sequences; None if they are not those that it was asked to propose for.
        It lacks nothing then."""
        ...

    def end_rounds(self, seq_id: int, start: int, states: torch.Tensor) -> None:
        """The layer has computed all before place `start`, from which on there are the model's `states` [n, hidden]."""
        ...


class ProposalRounds:
    """Computes rows whose drafts are `UNPROPOSED`, over the graphs of `runner`. A step of up to `few_rows` has up to
    `num_rounds`, another one half as many, which take longer."""

    def __init__(self, runner: ModelRunner, chain: ProposalChain, *, num_rounds: int, few_rows: int) -> None:
        assert not (runner.decoder.traits.has_states or runner.decoder.traits.attends_media)
        self._runner: ModelRunner = proxy(runner)  # which has these rounds: neither is to keep the other
        self._chain = chain
        self._num_rounds, self._few_rows = num_rounds, few_rows
        self.source: RoundSource | None = None

    def count_drafts(self, num_rows: int) -> DraftRoom:
        """Return the drafts that each row of a step of `num_rows` may have: none where rounds are not possible."""
        num_proposed, graphs = self._chain.find_size(num_rows).num_proposed, self._runner.graphs
        most = 0 if graphs is None else min(graphs.most_tokens, self._runner.device_rows.num_lent)
        if not num_proposed or num_rows * (1 + num_proposed) > most:
            return DraftRoom(0, num_proposed)
        num_rounds = self._num_rounds if num_rows <= self._few_rows else self._num_rounds // 2
        return DraftRoom(num_rounds * (1 + num_proposed) - 1, num_proposed)

    def launch(self, plan: StepPlan, launch_usually: Callable[[StepPlan], LaunchedStep]) -> LaunchedStep:
        """Begin to compute a plan with `UNPROPOSED` drafts: in rounds, or without drafts if some row has other tokens
        or an adapter."""
        launched = self._launch_rounds(plan)
        if launched is None:
            launched = launch_usually(plan.without_drafts())
            launched.drafted = {row.seq_id: DraftCounts(0, 0) for row in plan.rows if row.drafts}
        return launched

    def _launch_rounds(self, plan: StepPlan) -> LaunchedStep | None:
        """Compute the rows of a plan in as many rounds as all of them have drafts for, if that is possible."""
        runner, (most, num_proposed) = self._runner, self.count_drafts(len(plan.rows))
        step = arrange_rows(plan.without_drafts(), runner.rows, {}, block_size=runner.block_size)
        num_drafts = min(most, *(len(row.drafts) for row in plan.rows))
        num_rounds = (1 + num_drafts) // (1 + num_proposed)
        if not (num_drafts and num_rounds and _takes_rounds(step)):
            return None
        assert self.source is not None
        missing = self.source.begin_rounds([row.seq_id for row in step.rows])
        return None if missing is None else self._compute(step, missing, num_proposed, num_rounds)

    def _compute(self, step: StepRows, missing: MissingTokens, num_proposed: int, num_rounds: int) -> LaunchedRounds:
        rounds = _Rounds(self._runner, self._chain, step, missing, num_proposed)
        found = [rounds.run(is_last=number == num_rounds) for number in range(1, num_rounds + 1)]
        rounds.end()
        assert self.source is not None
        return LaunchedRounds(
            step=step,
            dtype=self._runner.dtype,
            copy=HostCopy(*(torch.stack(parts) for parts in zip(*[each[:3] for each in found], strict=True))),
            states=found[-1].states.clone(),
            source=self.source,
        )


def _takes_rounds(step: StepRows) -> bool:
    """Whether each row begins with a generated token that the host knows, and changes no weights."""
    return step.is_decode and step.adapter_slots is None and not len(step.pending)


def count_right(proposed: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return int64 [R]: how many of the first tokens that were `proposed`, int64 [R, D], are those that were `chosen`
    before them, int64 [R, D + 1]."""
    return (proposed == chosen[:, :-1]).long().cumprod(dim=1).sum(dim=1)


class _Round(NamedTuple):
    """tokens int64 [R, D + 1]: what the model chose behind the last known token and D proposed ones of each of R
    sequences. is_finite bool [R, D + 1]: whether all that was computed for these is. num_right: see `count_right`.
    states [R x (D + 1), hidden]: those of all tokens that were computed, good until the next round.
    """

    tokens: torch.Tensor
    is_finite: torch.Tensor
    num_right: torch.Tensor
    states: torch.Tensor


class _Rounds:
    """The rounds of one step, all in slots that are its sequences' own or lent to them."""

    def __init__(
        self, runner: ModelRunner, chain: ProposalChain, step: StepRows, missing: MissingTokens, num_proposed: int
    ) -> None:
        assert runner.graphs is not None
        self._graphs, self._chain = runner.graphs, chain
        self._rows = rows = runner.device_rows
        self._count, self._width = count, width = len(step.rows), 1 + num_proposed
        chain.begin(missing)
        self._num_missing = len(missing.states)
        self._owners = np.fromiter((member.slot for member in missing.members), np.int64, count=count)
        self._slots = rows.lend(step.slots, np.full(count, width)).reshape(count, width)
        places = step.starts[:, None] + np.arange(width)
        rows.token_places[self._slots[:, 1:]] = places[:, 1:]  # what is proposed comes there
        members = [member for member in step.members for _ in range(width)]
        size = self._graphs.find_size(count * width)
        rows.begin_decode(self._slots.reshape(-1), places.reshape(-1), members, size=size)
        self._own, self._lent = upload([self._slots[:, 0].copy(), self._slots[:, 1:].reshape(-1)], rows.numbers.device)
        self._chained: tuple[torch.Tensor, torch.Tensor] | None = None

    def run(self, *, is_last: bool) -> _Round:
        """Propose, verify and count; and prepare the next round, unless it is the last one."""
        count, width = self._count, self._width
        num_tokens = self._num_missing if self._chained is None else count * width
        proposed = self._chain.compute(count, num_tokens).T
        state = self._rows.state
        ahead = state[self._own, LENGTH][:, None] + self._rows.numbers[1:width]
        state[:, TOKEN].index_copy_(0, self._lent, proposed.reshape(-1))
        state[:, LENGTH].index_copy_(0, self._lent, ahead.reshape(-1))
        output = self._graphs.replay(count * width)
        tokens = output.token_ids.view(count, width).clone()
        num_right = count_right(proposed, tokens)
        lasts = tokens.gather(1, num_right[:, None])[:, 0]
        places = state[self._own, LENGTH] - 1  # the graph has added one
        state[:, TOKEN].index_copy_(0, self._own, lasts)
        state[:, LENGTH].index_copy_(0, self._own, places + 1 + num_right)
        if not is_last:
            self._go_on(VerifiedTokens(tokens, num_right, lasts, places, output.states))
        return _Round(tokens, output.best.view(count, width).isfinite(), num_right, output.states)

    def _go_on(self, verified: VerifiedTokens) -> None:
        if self._chained is None:
            lent = self._chain.lend(self._owners, self._width - 1)
            owners, there = upload([self._owners, lent.copy()], self._own.device)
            self._chained = owners, there
        self._chain.go_on(*self._chained, verified)

    def end(self) -> None:
        """Note that the host does not know any more what the device has of these sequences."""
        self._rows.forget(self._slots.reshape(-1))
        self._chain.forget(self._owners)


@dataclass(slots=True, kw_only=True)
class LaunchedRounds(LaunchedStep):
    """A step of several rounds. copy: of int64 [rounds, R, D + 1], bool [rounds, R, D + 1] and int64 [rounds, R], the
    `_Round`s. states: of the last one. source: gets these."""

    copy: HostCopy
    states: torch.Tensor
    source: RoundSource

    def collect(self) -> StepResult:
        """See `LaunchedStep`."""
        tokens, is_finite, num_right = (part.numpy() for part in self.copy.wait())
        num_rounds, _, width = tokens.shape
        sampled: dict[int, tuple[int, ...]] = {}
        errors: dict[int, RequestError] = {}
        drafted: dict[int, DraftCounts] = {}
        for index, (row, member) in enumerate(zip(self.step.rows, self.step.members, strict=True)):
            counts = num_right[:, index] + 1
            is_taken = np.arange(width) < counts[:, None]
            found = tokens[:, index][is_taken]
            num_good = int(is_finite[:, index][is_taken].cumprod().sum())
            if not num_good:
                errors[row.seq_id] = make_not_finite_error("logits", self.dtype)
                continue
            sampled[row.seq_id] = tuple(found[:num_good].tolist())  # what comes behind is computed again
            drafted[row.seq_id] = DraftCounts(num_rounds * (width - 1), int(counts.sum()) - num_rounds)
            member.record(row.start + 1, sampled[row.seq_id])
            if num_good == len(found):
                first, start = index * width, row.start + int(counts[:-1].sum())
                self.source.end_rounds(row.seq_id, start, self.states[first : first + int(counts[-1])])
        return StepResult(
            token_ids=sampled,
            errors=errors,
            not_finite=frozenset(errors),
            seconds=None if self.stopwatch is None else self.stopwatch.seconds(),
            drafted=drafted,
        )
