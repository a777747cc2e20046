"""Proposes and verifies tokens again and again on the device: the host waits once for several such rounds.

A round proposes tokens behind the last known one of each sequence, has the model compute all of them, and counts on the
device those which the model chose itself; the next round begins behind these. Lengths, tokens and what proposes are
advanced where they are, so that no round waits for the host. Only sequences of which the likeliest or a drawn token is
wanted, and no more, take part: what they are proposed depends on no rule of the host.

Behind a step's own rounds those of the next one are launched, so that the device has work while the host commits and
plans. If that plan goes on with the same sequences, or some of them, it gets these rounds; otherwise they were for
nothing: they have written to places that the sequences had reserved, and behind all that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import proxy

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import HostCopy, upload
from seesay.errors import RequestError
from seesay.llm.plans.step_plan import DraftCounts, StepPlan
from seesay.llm.running.device_rows import lend_blocks, make_draws
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.proposals import round_state
from seesay.llm.running.proposals.round_state import CountedRound, HostRound, LentSlots, VerifiedTokens
from seesay.llm.running.sampler import choose_drawn, make_not_finite_error
from seesay.llm.running.sampling_rows import count_drawn
from seesay.llm.running.step_input import StepRows, arrange_rows

if TYPE_CHECKING:
    from seesay.llm.running.decode_graphs import DecodeOutput
    from seesay.llm.running.device_rows import DeviceRows
    from seesay.llm.running.row_table import RowState
    from seesay.llm.running.runner import ModelRunner

Counts = npt.NDArray[np.int64]


class RoundRoom(NamedTuple):
    """Rounds of a step, and tokens that may be proposed for a row in each of them: 0 where rounds are not possible."""

    num_rounds: int
    num_proposed: int


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

    def resume(self, step: StepRows) -> bool:
        """Take the next step, whose rounds were launched behind those of the one before, of which it has all rows or
        some. Returns false, and has changed nothing, if these are not the rows that it was asked to propose for."""
        ...

    def extend(self) -> None:
        """The sequences have more blocks now, and further rounds follow. Does nothing, unless a class says what."""
        return

    def propose(self) -> torch.Tensor:
        """Return what is proposed for each row, int64 [R, D] with the largest D of `begin`; -1 where nothing is."""
        ...

    def go_on(self, verified: VerifiedTokens) -> None:
        """Take what the model made of what was proposed, before the next round."""
        ...

    def forget(self) -> None:
        """Rounds were launched: the host does not know how far the device has gone on with the rows. As `extend`."""
        return

    def settle(self, seq_id: int, start: int, states: torch.Tensor) -> None:
        """In the last round of the step, a sequence went on from place `start` with the model's `states` [n, hidden] of
        tokens that were right. Not called for one that failed."""
        ...


class ProposalRounds:
    """Computes rows whose drafts are `UNPROPOSED`, over the graphs of `runner`, with what `proposer` proposes.

    Up to `num_rounds` are launched at a time, half as many for more than `few_rows` rows, which do not end in the same
    round: half of them are those of a step, the others of the next one.
    """

    def __init__(self, runner: ModelRunner, proposer: RoundProposer, *, num_rounds: int, few_rows: int) -> None:
        assert not (runner.decoder.traits.has_states or runner.decoder.traits.attends_media)
        self._runner: ModelRunner = proxy(runner)  # which has these rounds: neither is to keep the other
        self._proposer = proposer
        self._num_rounds, self._few_rows = num_rounds, few_rows
        self._ahead: _Launched | None = None
        round_state.warm_up(runner.device, runner.dtype)

    def find_room(self, num_rows: int) -> RoundRoom:
        """Return the rounds of a step of `num_rows`: none where they are not possible."""
        num_proposed, graphs = self._proposer.count_proposed(num_rows), self._runner.graphs
        most = 0 if graphs is None else min(graphs.most_tokens, self._runner.device_rows.num_lent)
        if not num_proposed or num_rows * (1 + num_proposed) > most:
            return RoundRoom(0, 0)
        return RoundRoom(self._num_rounds if num_rows <= self._few_rows else self._num_rounds // 2, num_proposed)

    def forget(self) -> None:
        """Do not go on with what was launched ahead: the model computes something else from now on."""
        self._ahead = None

    def launch(self, plan: StepPlan, launch_usually: Callable[[StepPlan], LaunchedStep]) -> LaunchedStep:
        """Begin to compute a plan: in rounds, if its drafts are `UNPROPOSED`; without drafts, if some row has other
        tokens or an adapter."""
        ahead, self._ahead = self._ahead, None
        if not plan.has_unproposed:
            return launch_usually(plan)
        launched = self._launch_rounds(plan, ahead)
        if launched is None:
            launched = launch_usually(plan.without_drafts())
            launched.drafted = {row.seq_id: DraftCounts(0, 0) for row in plan.rows if row.drafts}
        return launched

    def _launch_rounds(self, plan: StepPlan, ahead: _Launched | None) -> LaunchedStep | None:
        """Compute the rows of a plan in as many rounds as all of them have drafts for, if that is possible."""
        runner, room = self._runner, self.find_room(len(plan.rows))
        step = arrange_rows(plan.without_drafts(), runner.rows, {}, block_size=runner.block_size)
        if not room.num_rounds or not _takes_rounds(step):
            return None
        num_drafts = {row.seq_id: len(row.drafts) for row in plan.rows}
        most = np.array([num_drafts[row.seq_id] for row in step.rows], dtype=np.int64)
        if ahead is not None and (resumed := self._resume(ahead, step, most)) is not None:
            return resumed
        counts = self._proposer.begin(step, np.minimum(most, room.num_proposed))
        if counts is None:
            return None
        num_rounds = min(room.num_rounds, _count_rounds(most, counts))
        rounds = _Rounds(runner, self._proposer, step, counts)
        num_own = min(-(-num_rounds // 2), int(-(-_count_left(step) // (1 + counts)).max()))
        launched = rounds.run(num_own)
        self._go_ahead(rounds, step, num_own, num_rounds - num_own)
        return launched.take(step, np.arange(len(step.rows)), runner.dtype)

    def _resume(self, ahead: _Launched, step: StepRows, most: Counts) -> LaunchedStep | None:
        """Let a step have the rounds that were launched ahead, if they are its."""
        rounds = ahead.rounds
        found = rounds.find(step)
        if found is None or _count_rounds(most, rounds.counts[found]) < ahead.num_rounds:
            return None
        if not self._proposer.resume(step):
            return None
        if len(found) == len(rounds.counts):  # the blocks of others may be somebody else's by now
            num_more = min(ahead.num_rounds, _count_rounds(most, rounds.counts[found]) - ahead.num_rounds)
            rounds.extend()
            self._go_ahead(rounds, step, ahead.num_rounds, num_more)
        return ahead.take(step, found, self._runner.dtype)

    def _go_ahead(self, rounds: _Rounds, step: StepRows, num_own: int, num_more: int) -> None:
        """Launch up to `num_more` rounds behind a step's `num_own`, unless these may bring all that is left."""
        is_over = (_count_left(step) <= num_own * (1 + rounds.counts[rounds.find_all(step)])).all()
        self._ahead = None if is_over or num_more <= 0 else rounds.run(num_more)


def _count_rounds(most: Counts, counts: Counts) -> int:
    """Return how many rounds all rows have drafts for, with `counts` of them in each."""
    return int(((1 + most) // (1 + counts)).min())


def _count_left(step: StepRows) -> Counts:
    """Return how many tokens each row still wants, int64 [R]."""
    wanted = (each.params.max_new_tokens + each.num_prompt_tokens - each.num_known for each in step.members)
    return np.fromiter(wanted, np.int64, count=len(step.members))


def _takes_rounds(step: StepRows) -> bool:
    """Whether each row begins with a generated token that the host knows, changes no weights, and wants no more than
    the likeliest or a drawn token."""
    if not step.is_decode or step.adapter_slots is not None or len(step.pending):
        return False
    return all(member.params.is_plain or member.params.is_plainly_drawn for member in step.members)


class _Rounds:
    """Rounds of the rows of a step, all in slots that are its sequences' own or lent to them: those of each row one
    after another, from `firsts` int64 [R] on. counts int64 [R]: tokens that are proposed for each. starts int64 [R]:
    where each row goes on behind the rounds that the host has collected."""

    def __init__(self, runner: ModelRunner, proposer: RoundProposer, step: StepRows, counts: Counts) -> None:
        assert runner.graphs is not None
        self._graphs, self.proposer, self._rows = runner.graphs, proposer, runner.device_rows
        rows, widths = self._rows, 1 + counts
        self.counts, self.starts = counts, step.starts.copy()
        self._places = {row.seq_id: index for index, row in enumerate(step.rows)}
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
        lent = [self._slots[is_lent], step.slots[owners[is_lent]], owners[is_lent], offsets[is_lent]]
        self._own, self._at, *there = upload([step.slots, at, *lent], rows.numbers.device)
        self._lent = LentSlots(*there)
        self._draws = _Draws.of(runner, step, members)
        self._verified: VerifiedTokens | None = None

    def find(self, step: StepRows) -> Counts | None:
        """Return which of these rows a step has, int64 [R], if it has no others, and goes on where these do."""
        if not all(row.seq_id in self._places for row in step.rows):
            return None
        found = self.find_all(step)
        return found if np.array_equal(self.starts[found], step.starts) else None

    def find_all(self, step: StepRows) -> Counts:
        """Return which of these rows a step has, int64 [R]: it has no others."""
        return np.fromiter((self._places[row.seq_id] for row in step.rows), np.int64, count=len(step.rows))

    def extend(self) -> None:
        """Let the rows have all blocks that their sequences have by now."""
        lend_blocks(self._rows, self._lent.owners, self._lent.slots)
        self.proposer.extend()

    def run(self, num_rounds: int) -> _Launched:
        """Launch further rounds."""
        collected = list[_Collected]()
        for _ in range(num_rounds):
            counted, states = self._run()
            collected.append(_Collected(counted, HostCopy(counted.for_host)))
        self._rows.forget(self._slots)
        self.proposer.forget()
        return _Launched(self, collected, states.clone())

    def _run(self) -> tuple[CountedRound, torch.Tensor]:
        """Propose behind the round before, verify and count. Returns the model's states, too, which are good until the
        next round."""
        if self._verified is not None:
            self.proposer.go_on(self._verified)
        proposed, state = self.proposer.propose(), self._rows.state
        round_state.put_proposed(state, self._lent, proposed)
        output = self._graphs.replay(self._total)
        token_ids = self._draws.choose(output, self._rows, self._total)
        counted = round_state.count_round(state, self._own, self._at, proposed, token_ids, output.best)
        self._verified = counted.verified(output.states)
        return counted, output.states


class _Draws(NamedTuple):
    """The tokens of a round that are drawn, by their places, and from how many logits (see `count_drawn`)."""

    drawn: list[int]
    num_ordered: int

    @classmethod
    def of(cls, runner: ModelRunner, step: StepRows, members: Sequence[RowState]) -> _Draws:
        rows = [index for index, member in enumerate(step.members) if member.params.is_drawn]
        vocab_size = runner.decoder.traits.vocab_size
        num_ordered = count_drawn(step, rows, vocab_size, runner.device) if rows else 0
        return cls([index for index, member in enumerate(members) if member.params.is_drawn], num_ordered)

    def choose(self, output: DecodeOutput, rows: DeviceRows, total: int) -> torch.Tensor:
        """Return the tokens that come behind those of a round, int64 [total]."""
        if not self.drawn:
            return output.token_ids
        token_ids = output.token_ids.clone()
        draws = make_draws(rows, rows.slots[:total], self.drawn)
        choose_drawn(output.logits, output.best, draws, token_ids, self.num_ordered)
        return token_ids


class _Collected(NamedTuple):
    """A round, and the copy of what the host has of it."""

    counted: CountedRound
    copy: HostCopy

    def wait(self) -> HostRound:
        [packed] = self.copy.wait()
        return self.counted.read(packed.numpy())


class _Launched(NamedTuple):
    """Rounds that were launched. states: of the last one, in which those of row i begin at `rounds.firsts[i]`."""

    rounds: _Rounds
    collected: list[_Collected]
    states: torch.Tensor

    @property
    def num_rounds(self) -> int:
        return len(self.collected)

    def take(self, step: StepRows, found: Counts, dtype: torch.dtype) -> LaunchedRounds:
        """Return them as those of a step whose rows are `found` among theirs."""
        return LaunchedRounds(step=step, dtype=dtype, launched=self, found=found)


@dataclass(slots=True, kw_only=True)
class LaunchedRounds(LaunchedStep):
    """A step of several rounds, whose rows are `found` int64 [R] among those of `launched`."""

    launched: _Launched
    found: Counts

    def collect(self) -> StepResult:
        """See `LaunchedStep`. What rounds take says nothing of how long a step of one does."""
        rounds, states = self.launched.rounds, self.launched.states
        left = _count_left(self.step)
        tokens, is_finite, num_right, num_proposed = self._wait(left)
        width, is_whole = tokens.shape[2], len(tokens) == self.launched.num_rounds
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
            wanted = np.maximum(left[index] - 1 - (counts.cumsum() - counts), 0)
            num_drafts = int(np.minimum(num_proposed[:, index], wanted).sum())
            drafted[row.seq_id] = DraftCounts(num_drafts, int(np.minimum(counts - 1, wanted).sum()))
            sampled[row.seq_id] = tuple(found[:num_good].tolist())  # what comes behind is computed again
            member.record(row.start + 1, sampled[row.seq_id])
            if is_whole and num_good == len(found):
                place = self.found[index]
                first, start = rounds.firsts[place], row.start + int(counts[:-1].sum())
                rounds.starts[place] = row.start + len(found)
                rounds.proposer.settle(row.seq_id, start, states[first : first + int(counts[-1])])
        return StepResult(
            token_ids=sampled,
            errors=errors,
            not_finite=frozenset(errors),
            drafted=drafted,
        )

    def _wait(self, left: Counts) -> list[npt.NDArray[Any]]:
        """Wait for the rounds until all rows have the tokens that are `left`. Returns the `HostRound`s of the rows,
        each field in one array."""
        found = list[list[npt.NDArray[Any]]]()
        for collected in self.launched.collected:
            found.append([part[self.found] for part in collected.wait()])
            left = left - 1 - found[-1][2]
            if (left <= 0).all():
                break
        return [np.stack(parts) for parts in zip(*found, strict=True)]
