"""The state that a runner keeps of the sequences that it computes, made from plans alone.

Knows neither `Sequence` nor the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seesay.llm.plans.media_sight import Sight, find_sights, find_stops
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import BegunSequence, MediaSpan, StepPlan
from seesay.llm.plans.token_buffer import TokenBuffer
from seesay.llm.plans.token_runs import TokenRuns
from seesay.llm.running.token_counts import TokenCounts

NO_END = 1 << 62
"""Behind every position."""
_NO_RUNS = np.zeros((2, 0), dtype=np.int64)


class Splice(NamedTuple):
    """Rows `row_start` … `row_stop` - 1 of the embedding of item `item_index` go to positions
    `items[item_index].slots[row_start:row_stop]`."""

    item_index: int
    row_start: int
    row_stop: int


class RowState:
    """One sequence: its known tokens and positions, its block table, and what its next token is chosen by.

    num_known: tokens that the host knows, those of a jump (`TokenMasks.jumps`) included, and the drafts of a step that
    is being computed; at most one more was sampled and is still the device's alone.
    block_ids: a new tuple when blocks are added. counts: of the tokens before, for the penalties; None without any.
    media_end: no embedding is spliced from this position on. slot: its place in the table. state_slot: see `Sequence`.
    runs: of tokens that see each other, none beyond `runs_stop`. output_end: rows that begin before it give more than
    tokens; 0 when none does.
    """

    __slots__ = (
        "_item_stops",
        "_positions",
        "_tokens",
        "adapter_slot",
        "block_ids",
        "counts",
        "items",
        "media_end",
        "next_position",
        "num_known",
        "num_prompt_tokens",
        "output_end",
        "params",
        "runs",
        "runs_stop",
        "seed",
        "seq_id",
        "slot",
        "state_slot",
        "stretch",
    )

    def __init__(self, begun: BegunSequence, slot: int = -1) -> None:
        params = begun.params
        self.slot = slot
        self.seq_id = begun.seq_id
        self.params: SamplingParams = params
        self.seed = begun.seed
        self.stretch = begun.stretch
        self.adapter_slot = begun.adapter_slot
        self.state_slot = begun.state_slot
        self.items: tuple[MediaSpan, ...] = begun.items
        self.num_prompt_tokens = begun.num_prompt_tokens
        self.next_position = begun.next_position
        self.block_ids: tuple[int, ...] = ()
        self.media_end = max((int(item.slots[-1]) + 1 for item in self.items if len(item.slots)), default=0)
        self._item_stops: tuple[int, ...] | None = None
        self.runs = TokenRuns(_NO_RUNS if begun.runs is None else begun.runs)
        self.runs_stop = self.runs.stop
        self.counts: TokenCounts | None = None
        self.output_end = 0
        if params.output_logits or params.output_last_hidden_state:
            self.output_end = NO_END
        elif params.prompt_logprobs is not None or params.pooling is not None:
            self.output_end = begun.num_prompt_tokens
        self._positions = begun.positions
        self._tokens = TokenBuffer(begun.token_ids, num_spare=min(params.max_new_tokens, 512))
        self.num_known = self._tokens.num_tokens

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """All known tokens, int64 [num_known]. A view: do not write to it."""
        return self._tokens.ids

    def record(self, start: int, token_ids: tuple[int, ...]) -> None:
        """Take the tokens from position `start`. A step that is computed a second time brings the same again."""
        self._tokens.write(start, token_ids)
        self.num_known = self._tokens.num_tokens

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Rotary positions of tokens `start` … `stop` - 1, int64 [n] or [3, n] as in the prompt. They need not be known
        yet: generated tokens follow `next_position` by one."""
        prompt = self._positions
        if stop <= self.num_prompt_tokens:
            return prompt[..., start:stop]
        first = max(start, self.num_prompt_tokens)
        offset = self.next_position - self.num_prompt_tokens
        generated = np.arange(first + offset, stop + offset, dtype=np.int64)
        if prompt.ndim == 2:
            generated = np.broadcast_to(generated, (prompt.shape[0], stop - first))
        if start >= self.num_prompt_tokens:
            return generated
        return np.concatenate((prompt[..., start:], generated), axis=-1)

    def sights(self, start: int, stop: int) -> Iterator[Sight]:
        """Yield the items to which positions `start` … `stop` - 1 attend (see `DecoderTraits.attends_media`)."""
        firsts = [int(item.slots[0]) for item in self.items]
        if self._item_stops is None:
            self._item_stops = find_stops(firsts)
        return find_sights(firsts, self._item_stops, start, stop)

    def splices(self, start: int, stop: int) -> list[Splice]:
        """Return which embedding rows go into positions `start` … `stop` - 1, in order of position."""
        if start >= self.media_end:
            return []
        found = []
        for index, item in enumerate(self.items):
            if item.span[0] >= stop:
                break
            if item.span[1] > start:
                first, last = np.searchsorted(item.slots, (start, stop))
                if last > first:
                    found.append(Splice(index, int(first), int(last)))
        return found


class RowTable:
    """The sequences that are being computed, by id. Each has a slot, a number below the most that there ever were at a
    time, which is its own until it ends."""

    def __init__(self) -> None:
        self._states: dict[int, RowState] = {}
        self._free: list[int] = []
        self._num_adapted = 0

    def __getitem__(self, seq_id: int) -> RowState:
        return self._states[seq_id]

    def __iter__(self) -> Iterator[RowState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    @property
    def has_adapters(self) -> bool:
        """Whether the weights of an adapter change those of the model for any of them."""
        return self._num_adapted > 0

    def apply(self, plan: StepPlan) -> None:
        """Take the deltas of a plan: once each, in the order in which they were made."""
        if plan.is_fresh:
            self._states.clear()
            self._free.clear()
            self._num_adapted = 0
        for seq_id in plan.ended_ids:
            state = self._states.pop(seq_id)
            self._free.append(state.slot)
            self._num_adapted -= state.adapter_slot >= 0
        for begun in plan.begun:
            assert begun.seq_id not in self._states, begun.seq_id
            slot = self._free.pop() if self._free else len(self._states)
            self._states[begun.seq_id] = RowState(begun, slot)
            self._num_adapted += begun.adapter_slot >= 0
        for seq_id, block_ids in plan.added_blocks:
            self._states[seq_id].block_ids += block_ids

    def take_drafts(self, plan: StepPlan) -> None:
        """Take the proposed tokens of a plan as known, until its results replace them."""
        for row in plan.rows:
            if row.drafts:
                self._states[row.seq_id].record(row.start + row.num_known, row.drafts)
