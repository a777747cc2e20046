"""The state that a runner keeps of the sequences that it computes, made from plans alone.

Knows neither `Sequence` nor the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seesay.llm.sampling_params import SamplingParams
from seesay.llm.step_plan import BegunSequence, MediaSpan, StepPlan
from seesay.llm.token_buffer import TokenBuffer
from seesay.llm.token_counts import TokenCounts


class Splice(NamedTuple):
    """Rows `row_start` … `row_stop` - 1 of the embedding of item `item_index` go to positions
    `items[item_index].slots[row_start:row_stop]`."""

    item_index: int
    row_start: int
    row_stop: int


class RowState:
    """One sequence: its known tokens and positions, its block table, and what its next token is chosen by.

    num_known: tokens that the host knows; at most one more was sampled and is still the device's alone.
    block_ids: a new tuple when blocks are added. counts: of the tokens before, for the penalties; None without any.
    media_end: no embedding is spliced from this position on. slot: of the table's columns.
    """

    __slots__ = (
        "_positions",
        "_tokens",
        "block_ids",
        "counts",
        "is_long",
        "items",
        "media_end",
        "next_position",
        "num_prompt_tokens",
        "params",
        "seed",
        "seq_id",
        "slot",
        "wants_token_only",
    )

    def __init__(self, begun: BegunSequence, slot: int = -1) -> None:
        params = begun.params
        self.slot = slot
        self.seq_id = begun.seq_id
        self.params: SamplingParams = params
        self.seed = begun.seed
        self.is_long = begun.is_long
        self.items: tuple[MediaSpan, ...] = begun.items
        self.num_prompt_tokens = begun.num_prompt_tokens
        self.next_position = begun.next_position
        self.block_ids: tuple[int, ...] = ()
        self.media_end = max((int(item.slots[-1]) + 1 for item in self.items if len(item.slots)), default=0)
        self.counts: TokenCounts | None = None
        self.wants_token_only = not (
            params.output_logits
            or params.output_last_hidden_state
            or params.prompt_logprobs
            or params.pooling is not None
        )
        self._positions = begun.positions
        self._tokens = TokenBuffer(begun.token_ids, num_spare=min(params.max_new_tokens, 512))

    @property
    def num_known(self) -> int:
        return self._tokens.num_tokens

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """All known tokens, int64 [num_known]. A view: do not write to it."""
        return self._tokens.ids

    def record(self, start: int, token_ids: tuple[int, ...]) -> None:
        """Take the tokens from position `start`. A step that is computed a second time brings the same again."""
        self._tokens.write(start, token_ids)

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

    def splices(self, start: int, stop: int) -> list[Splice]:
        """Which embedding rows go into positions `start` … `stop` - 1, in order of position."""
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
    """The sequences that are being computed, by id; and as columns, by slot, what decode steps need of all their rows.

    num_prompt_tokens int64 [S]. offsets int64 [S]: the rotary position of a generated token less its place.
    is_long bool [S]. block_table int32 [S, M] with num_blocks int64 [S] blocks each; no meaning beyond. versions int64
    [S], positive: another number whenever the slot has another sequence or more blocks. All grow: take them anew in
    each step.
    """

    def __init__(self) -> None:
        self._states: dict[int, RowState] = {}
        self._free: list[int] = []
        self._version = 0
        self.num_prompt_tokens = np.zeros(0, dtype=np.int64)
        self.offsets = np.zeros(0, dtype=np.int64)
        self.is_long = np.zeros(0, dtype=np.bool_)
        self.block_table = np.zeros((0, 16), dtype=np.int32)
        self.num_blocks = np.zeros(0, dtype=np.int64)
        self.versions = np.zeros(0, dtype=np.int64)

    def __getitem__(self, seq_id: int) -> RowState:
        return self._states[seq_id]

    def __iter__(self) -> Iterator[RowState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def apply(self, plan: StepPlan) -> None:
        """Take the deltas of a plan: once each, in the order in which they were made."""
        for seq_id in plan.ended_ids:
            self._free.append(self._states.pop(seq_id).slot)
        for begun in plan.begun:
            self._begin(begun)
        for seq_id, block_ids in plan.added_blocks:
            self._add_blocks(self._states[seq_id], block_ids)

    def _begin(self, begun: BegunSequence) -> None:
        assert begun.seq_id not in self._states, begun.seq_id
        if not self._free:
            self._add_slots(max(8, len(self.offsets)))
        slot = self._free.pop()
        self._states[begun.seq_id] = RowState(begun, slot)
        self.num_prompt_tokens[slot] = begun.num_prompt_tokens
        self.offsets[slot] = begun.next_position - begun.num_prompt_tokens
        self.is_long[slot] = begun.is_long
        self.num_blocks[slot] = 0
        self._renew(slot)

    def _add_blocks(self, row: RowState, block_ids: tuple[int, ...]) -> None:
        held = len(row.block_ids)
        row.block_ids += block_ids
        num_blocks = len(row.block_ids)
        if num_blocks > self.block_table.shape[1]:
            more = max(num_blocks, 2 * self.block_table.shape[1]) - self.block_table.shape[1]
            self.block_table = np.pad(self.block_table, ((0, 0), (0, more)))
        self.block_table[row.slot, held:num_blocks] = block_ids
        self.num_blocks[row.slot] = num_blocks
        self._renew(row.slot)

    def _renew(self, slot: int) -> None:
        self._version += 1
        self.versions[slot] = self._version

    def _add_slots(self, count: int) -> None:
        first = len(self.offsets)
        for name in ("num_prompt_tokens", "offsets", "is_long", "num_blocks", "versions"):
            setattr(self, name, np.pad(getattr(self, name), (0, count)))
        self.block_table = np.pad(self.block_table, ((0, count), (0, 0)))
        self._free.extend(range(first + count - 1, first - 1, -1))
