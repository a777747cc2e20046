"""Proposes and verifies tokens again and again on the device: the host waits once for several such rounds.

A round proposes tokens behind the last known one of each sequence, has the model compute all of them, and counts on the
device those which the model chose itself; the next round begins behind these. Lengths, tokens and what proposes are
advanced where they are, so that no round waits for the host. Only sequences of which the likeliest or a drawn token is
wanted, and no more, take part: what they are proposed depends on no rule of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import proxy

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import HostCopy, upload
from seesay.errors import RequestError
from seesay.llm.plans.step_plan import DraftCounts, StepPlan
from seesay.llm.running.device_rows import LENGTH, TOKEN, make_draws
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.sampler import choose_drawn, make_not_finite_error
from seesay.llm.running.sampling_rows import count_drawn
from seesay.llm.running.step_input import StepRows, arrange_rows

if TYPE_CHECKING:
    from seesay.llm.running.decode_graphs import DecodeOutput
    from seesay.llm.running.runner import ModelRunner

Counts = npt.NDArray[np.int64]


class RoundRoom(NamedTuple):
    """Rounds of a step, and tokens that may be proposed for a row in each of them: 0 where rounds are not possible."""

    num_rounds: int
    num_proposed: int


class VerifiedTokens(NamedTuple):
    """What a model made of R sequences' last known tokens and up to D proposed ones behind each, on the device.

    tokens int64 [R, D + 1]: what it chose behind each; beyond those of a row, its last one again. num_right int64 [R]:
    proposed ones that were those which it chose. lasts int64 [R]: what it chose behind these. places int64 [R]: of the
    first tokens. states [tokens of all rows, hidden]: its states of all of them.
    """

    tokens: torch.Tensor
    num_right: torch.Tensor
    lasts: torch.Tensor
    places: torch.Tensor
    states: torch.Tensor


class RoundProposer(Protocol):
    """Proposes tokens of the rows of a step, in round after round of it. Steps come one after another: each is settled
    before the next one begins."""

    def count_proposed(self, num_rows: int) -> int:
        """Return how many tokens may be proposed for each of so many rows in a round."""
        ...

    def begin(self, step: StepRows, most: Counts) -> Counts | None:
        """Get ready for the rows of a step. Returns how many tokens each of them has in a round, int64 [R], up to
        `most` int64 [R]; None where it can propose nothing for them. Then it has changed nothing."""
        ...

    def propose(self) -> torch.Tensor:
        """Return what is proposed for each row, int64 [R, D] with the largest D of `begin`; -1 where nothing is."""
        ...

    def go_on(self, verified: VerifiedTokens) -> None:
        """Take what the model made of what was proposed, before the next round."""
        ...

    def end(self) -> None:
        """The last round of the step was launched."""
        ...

    def settle(self, seq_id: int, start: int, states: torch.Tensor) -> None:
        """In the last round of the step, a sequence went on from place `start` with the model's `states` [n, hidden] of
        tokens that were right. Not called for one that failed."""
        ...


class ProposalRounds:
    """Computes rows whose drafts are `UNPROPOSED`, over the graphs of `runner`, with what `proposer` proposes. A step
    of up to `few_rows` has up to `num_rounds`, another one half as many, which take longer."""

    def __init__(self, runner: ModelRunner, proposer: RoundProposer, *, num_rounds: int, few_rows: int) -> None:
        assert not (runner.decoder.traits.has_states or runner.decoder.traits.attends_media)
        self._runner: ModelRunner = proxy(runner)  # which has these rounds: neither is to keep the other
        self._proposer = proposer
        self._num_rounds, self._few_rows = num_rounds, few_rows

    def find_room(self, num_rows: int) -> RoundRoom:
        """Return the rounds of a step of `num_rows`: none where they are not possible."""
        num_proposed, graphs = self._proposer.count_proposed(num_rows), self._runner.graphs
        most = 0 if graphs is None else min(graphs.most_tokens, self._runner.device_rows.num_lent)
        if not num_proposed or num_rows * (1 + num_proposed) > most:
            return RoundRoom(0, 0)
        return RoundRoom(self._num_rounds if num_rows <= self._few_rows else self._num_rounds // 2, num_proposed)

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
        runner, room = self._runner, self.find_room(len(plan.rows))
        step = arrange_rows(plan.without_drafts(), runner.rows, {}, block_size=runner.block_size)
        if not room.num_rounds or not _takes_rounds(step):
            return None
        num_drafts = {row.seq_id: len(row.drafts) for row in plan.rows}
        most = np.array([num_drafts[row.seq_id] for row in step.rows], dtype=np.int64)
        counts = self._proposer.begin(step, np.minimum(most, room.num_proposed))
        if counts is None:
            return None
        num_rounds = min(room.num_rounds, int(((1 + most) // (1 + counts)).min()))
        return self._compute(step, counts, num_rounds)

    def _compute(self, step: StepRows, counts: Counts, num_rounds: int) -> LaunchedRounds:
        rounds = _Rounds(self._runner, self._proposer, step, counts)
        found = [rounds.run(is_last=number == num_rounds) for number in range(1, num_rounds + 1)]
        rounds.end()
        return LaunchedRounds(
            step=step,
            dtype=self._runner.dtype,
            copy=HostCopy(*(torch.stack(parts) for parts in zip(*[each[:4] for each in found], strict=True))),
            states=found[-1].states.clone(),
            firsts=rounds.firsts,
            proposer=self._proposer,
        )


def _takes_rounds(step: StepRows) -> bool:
    """Whether each row begins with a generated token that the host knows, changes no weights, and wants no more than
    the likeliest or a drawn token."""
    if not step.is_decode or step.adapter_slots is not None or len(step.pending):
        return False
    return all(member.params.is_plain or member.params.is_plainly_drawn for member in step.members)


def count_right(proposed: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return int64 [R]: how many of the first tokens that were `proposed`, int64 [R, D], are those that were `chosen`
    before them, int64 [R, D + 1]."""
    return (proposed == chosen[:, :-1]).long().cumprod(dim=1).sum(dim=1)


class _Round(NamedTuple):
    """tokens, num_right, states: see `VerifiedTokens`; the states are good until the next round. is_finite bool
    [R, D + 1]: whether all that was computed for these is. num_proposed int64 [R]: tokens that were.
    """

    tokens: torch.Tensor
    is_finite: torch.Tensor
    num_right: torch.Tensor
    num_proposed: torch.Tensor
    states: torch.Tensor


class _Rounds:
    """The rounds of one step, all in slots that are its sequences' own or lent to them: those of each row one after
    another, from `firsts` int64 [R] on."""

    def __init__(self, runner: ModelRunner, proposer: RoundProposer, step: StepRows, counts: Counts) -> None:
        assert runner.graphs is not None
        self._graphs, self._proposer, self._rows = runner.graphs, proposer, runner.device_rows
        rows, widths = self._rows, 1 + counts
        self._total = total = int(widths.sum())
        self.firsts: Counts = np.cumsum(widths) - widths
        self._slots = rows.lend(step.slots, widths)
        owners = np.repeat(np.arange(len(counts)), widths)
        offsets = np.arange(total) - self.firsts[owners]
        places, is_lent = step.starts[owners] + offsets, offsets > 0
        rows.token_places[self._slots[is_lent]] = places[is_lent]  # what is proposed comes there
        members = [step.members[owner] for owner in owners.tolist()]
        rows.begin_decode(self._slots, places, members, size=self._graphs.find_size(total))
        width = int(widths.max())
        at = self.firsts[:, None] + np.minimum(np.arange(width), counts[:, None])
        proposed_at = owners[is_lent] * (width - 1) + offsets[is_lent] - 1
        self._own, self._lent, self._owners, self._offsets, self._at, self._proposed_at = upload(
            [step.slots, self._slots[is_lent], owners[is_lent], offsets[is_lent], at, proposed_at], rows.numbers.device
        )
        self._drawn = [index for index, member in enumerate(members) if member.params.is_drawn]
        vocab_size, drawn = (
            runner.decoder.traits.vocab_size,
            [i for i, m in enumerate(step.members) if m.params.is_drawn],
        )
        self._num_ordered = count_drawn(step, drawn, vocab_size, runner.device) if drawn else 0

    def run(self, *, is_last: bool) -> _Round:
        """Propose, verify and count; and prepare the next round, unless it is the last one."""
        proposed, state = self._proposer.propose(), self._rows.state
        ahead = state[self._own, LENGTH][self._owners] + self._offsets
        given = proposed.reshape(-1).index_select(0, self._proposed_at).clamp(min=0)
        state[:, TOKEN].index_copy_(0, self._lent, given)
        state[:, LENGTH].index_copy_(0, self._lent, ahead)
        output = self._graphs.replay(self._total)
        tokens = self._choose(output)[self._at]
        num_right = count_right(proposed, tokens)
        lasts = tokens.gather(1, num_right[:, None])[:, 0]
        places = state[self._own, LENGTH] - 1  # the graph has added one
        state[:, TOKEN].index_copy_(0, self._own, lasts)
        state[:, LENGTH].index_copy_(0, self._own, places + 1 + num_right)
        if not is_last:
            self._proposer.go_on(VerifiedTokens(tokens, num_right, lasts, places, output.states))
        is_finite, num_proposed = output.best[self._at].isfinite(), (proposed >= 0).sum(dim=1)
        return _Round(tokens, is_finite, num_right, num_proposed, output.states)

    def _choose(self, output: DecodeOutput) -> torch.Tensor:
        """Return the tokens that come behind those of a round, int64 [total]."""
        if not self._drawn:
            return output.token_ids
        token_ids = output.token_ids.clone()
        draws = make_draws(self._rows, self._rows.slots[: self._total], self._drawn)
        choose_drawn(output.logits, output.best, draws, token_ids, self._num_ordered)
        return token_ids

    def end(self) -> None:
        """Note that the host does not know any more what the device has of these sequences."""
        self._rows.forget(self._slots)
        self._proposer.end()


@dataclass(slots=True, kw_only=True)
class LaunchedRounds(LaunchedStep):
    """A step of several rounds. copy: of int64 [rounds, R, D + 1], bool [rounds, R, D + 1], int64 [rounds, R] and int64
    [rounds, R], the `_Round`s. states: of the last one, in which those of row i begin at `firsts[i]`."""

    copy: HostCopy
    states: torch.Tensor
    firsts: Counts
    proposer: RoundProposer

    def collect(self) -> StepResult:
        """See `LaunchedStep`."""
        tokens, is_finite, num_right, num_proposed = (part.numpy() for part in self.copy.wait())
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
            drafted[row.seq_id] = DraftCounts(int(num_proposed[:, index].sum()), int(counts.sum()) - num_rounds)
            member.record(row.start + 1, sampled[row.seq_id])
            if num_good == len(found):
                first, start = self.firsts[index], row.start + int(counts[:-1].sum())
                self.proposer.settle(row.seq_id, start, self.states[first : first + int(counts[-1])])
        return StepResult(
            token_ids=sampled,
            errors=errors,
            not_finite=frozenset(errors),
            seconds=None if self.stopwatch is None else self.stopwatch.seconds(),
            drafted=drafted,
        )
