"""Collect what the next plan must tell runners of sequences. Changes no sequence."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import NamedTuple

from seesay.llm.plans.step_plan import AddedBlocks, BegunSequence, MediaSpan
from seesay.llm.scheduling.sequence import Sequence


class Deltas(NamedTuple):
    """See `StepPlan`."""

    is_fresh: bool
    ended_ids: tuple[int, ...]
    begun: tuple[BegunSequence, ...]
    added_blocks: tuple[AddedBlocks, ...]


class PlanDeltas:
    """Collects deltas from one plan to the next."""

    def __init__(self) -> None:
        self._num_sent_blocks: dict[int, int] = {}  # by the id of each sequence that runners know
        self._is_fresh = False
        self._ended: list[int] = []
        self._begun: dict[int, BegunSequence] = {}
        self._added: list[AddedBlocks] = []

    @property
    def begun_ids(self) -> Container[int]:
        """The sequences that begin with the plan that is being made."""
        return self._begun

    def begin(self, seq: Sequence) -> None:
        """A sequence is computed from this plan on, with the tokens that are known now."""
        assert seq.seq_id not in self._num_sent_blocks, seq
        self._num_sent_blocks[seq.seq_id] = 0
        self._begun[seq.seq_id] = make_begun(seq)

    def add_blocks(self, seq: Sequence) -> None:
        """Send the blocks of a sequence that runners do not know yet."""
        num_sent = self._num_sent_blocks[seq.seq_id]
        if len(seq.block_ids) > num_sent:
            self._num_sent_blocks[seq.seq_id] = len(seq.block_ids)
            self._added.append(AddedBlocks(seq.seq_id, seq.block_ids[num_sent:]))

    def end(self, seq: Sequence) -> None:
        """A sequence has ended or is preempted. Runners that do not know it are not notified."""
        if self._num_sent_blocks.pop(seq.seq_id, None) is None:
            return
        if self._begun.pop(seq.seq_id, None) is None:
            self._ended.append(seq.seq_id)
        else:  # begun for a plan that was never made
            self._added = [added for added in self._added if added.seq_id != seq.seq_id]

    def renew(self, running: Iterable[Sequence]) -> None:
        """Forget what runners were told: the next plan names all `running` sequences, with their blocks."""
        self._num_sent_blocks.clear()
        self._begun.clear()
        self._ended, self._added, self._is_fresh = [], [], True
        for seq in running:
            self.begin(seq)
            self.add_blocks(seq)

    def take(self) -> Deltas:
        """The deltas since the last call."""
        taken = Deltas(self._is_fresh, tuple(self._ended), tuple(self._begun.values()), tuple(self._added))
        self._is_fresh, self._ended, self._begun, self._added = False, [], {}, []
        return taken


def make_begun(seq: Sequence) -> BegunSequence:
    """A snapshot of what runners need of a sequence that begins."""
    params = seq.params
    if params.logits_processors or params.bad_words or params.allowed_token_ids or params.seed is not None:
        params = replace(params, logits_processors=(), bad_words=(), allowed_token_ids=(), seed=None)
    return BegunSequence(
        seq_id=seq.seq_id,
        token_ids=seq.token_ids.copy(),
        num_prompt_tokens=seq.num_prompt_tokens,
        positions=seq.prompt_positions,
        next_position=seq.next_position,
        params=params,
        seed=seq.seed,
        items=tuple(
            MediaSpan(modality=item.modality, span=item.span, slots=item.slots, hash=item.hash) for item in seq.items
        ),
        stretch=seq.stretch,
        adapter_slot=seq.adapter_slot,
        state_slot=seq.state_slot,
        runs=None if seq.runs is None else seq.runs.bounds,
    )
