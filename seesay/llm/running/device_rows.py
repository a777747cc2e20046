"""The part of a row table that lives on the device, by slot: what decode steps and draws read without the host.

Deltas of plans come with one small copy per step that has any. Lengths and tokens are advanced where they are: a graph
adds one to the lengths of its rows, and the sampler's choices are the next step's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.backends import has_float64, has_kernels
from seesay.device.transfers import upload
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.row_table import RowState, RowTable
from seesay.llm.running.sampler import DRAW_OPTIONS, draw_words

if TYPE_CHECKING:
    from seesay.llm.running.step_input import StepRows

TOKEN, LENGTH, OFFSET, STRETCH, SEED, STATE, OPTIONS = range(7)
"""Columns of `DeviceRows.state`: the token to compute next; its place in the sequence, which is the number of tokens
before it; its rotary position less its place, once the prompt is over; the bits of its stretch, float64 where the
device has it, else float32; the seed of its draws; the slot of its state; and from `OPTIONS` on the `DRAW_OPTIONS`
words of its draws (see `draw_words`)."""
NUM_COLUMNS = OPTIONS + DRAW_OPTIONS


class DecodeInput(NamedTuple):
    """The input of one token of each of n rows: input_ids int64 [n], positions int64 [axes, n], slot_mapping int64 [n],
    kv_lens int32 [n], stretches float64 [n], faults float32 [n] of zeros and is_valid bool [n] (see `ModelInput`),
    block_table int32 [n, M]."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    kv_lens: torch.Tensor
    stretches: torch.Tensor
    faults: torch.Tensor
    is_valid: torch.Tensor
    block_table: torch.Tensor


class DeviceRows:
    """Tensors for up to `num_slots` sequences of up to `max_blocks` blocks each. Slots from `num_slots` on are of
    `num_lent` proposed tokens, each of which a graph computes as if it were a sequence of its own with the same blocks.
    The last slot, `scratch_slot`, is nobody's, has the block `scratch_block` and the state `scratch_state`, and is what
    graphs are filled up with. The tensors stay at their addresses.

    state: int64 [scratch_slot + 1, NUM_COLUMNS]. block_table: int32 [scratch_slot + 1, max_blocks], no meaning beyond a
    row's blocks. slots: int64 [num_rows], those of the rows of the step that a graph computes. numbers: int64
    [num_rows], 0, 1, 2, ….

    lengths, token_places: int64 [scratch_slot] on the host: the length that the device has for each slot, and the place
    of the token that it has, when all queued work is done; -1: none. The host sends these where it wants others: of a
    sequence that begins, or of a step that is computed again.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        max_blocks: int,
        scratch_block: int,
        device: torch.device,
        num_lent: int = 0,
        scratch_state: int = 0,
    ) -> None:
        self.num_slots = num_slots
        self.num_lent = num_lent
        self.num_rows = num_rows = max(num_slots, num_lent)
        self.scratch_slot = scratch_slot = num_slots + num_lent
        num_words = (scratch_slot + 1) * NUM_COLUMNS
        self._words = torch.zeros(num_words + num_rows, dtype=torch.int64, device=device)
        self._words[num_words:] = scratch_slot
        self.state = self._words[:num_words].view(scratch_slot + 1, NUM_COLUMNS)
        self.state[scratch_slot, STATE] = scratch_state
        self.slots = self._words[num_words:]
        self.block_table = torch.full((scratch_slot + 1, max_blocks), scratch_block, dtype=torch.int32, device=device)
        self.numbers = torch.arange(num_rows, device=device)
        self._device = device
        self._first_slot_word = num_words
        self.lengths = np.full(scratch_slot, -1, dtype=np.int64)  # -1: unknown
        self.token_places = np.full(scratch_slot, -1, dtype=np.int64)
        self._sent_slots = np.full(num_rows, scratch_slot, dtype=np.int64)
        self._num_blocks = [0] * num_slots
        self._new_words: dict[int, int] = {}  # place in `_words` → value, not sent yet
        self._new_blocks: dict[int, int] = {}  # place in `block_table` → block, not sent yet

    def take(self, plan: StepPlan, table: RowTable) -> None:
        """Note the deltas of a plan, which `table` has applied. They are sent with the next step's rows."""
        if plan.is_fresh:
            self.lengths[:] = self.token_places[:] = self._sent_slots[:] = -1
            self._num_blocks = [0] * self.num_slots
            self._new_words.clear()
            self._new_blocks.clear()
        for begun in plan.begun:
            slot = table[begun.seq_id].slot
            assert slot < self.num_slots, f"more than {self.num_slots} sequences"
            self._num_blocks[slot] = 0
            self.lengths[slot] = self.token_places[slot] = -1
            first = slot * NUM_COLUMNS
            offset, stretch = begun.next_position - begun.num_prompt_tokens, _to_bits(begun.stretch, self._device)
            words = offset, stretch, _to_signed(begun.seed), begun.state_slot
            self._new_words.update(enumerate(words, first + OFFSET))
            if begun.params.is_drawn:
                self._new_words.update(enumerate(draw_words([begun.params])[0].tolist(), first + OPTIONS))
        width = self.block_table.shape[1]
        for seq_id, block_ids in plan.added_blocks:
            slot = table[seq_id].slot
            held = self._num_blocks[slot]
            self._num_blocks[slot] += len(block_ids)
            assert self._num_blocks[slot] <= width, f"more than {width} blocks"
            self._new_blocks.update(enumerate(block_ids, slot * width + held))

    def begin_step(self, slots: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """Send what is new before a step without a graph, after which the sequences in `slots` int64 [R] have `lengths`
        int64 [R] computed tokens."""
        changed = np.flatnonzero(self.lengths[slots] != lengths)
        self._send([(slots[changed] * NUM_COLUMNS + LENGTH, lengths[changed])])
        self.lengths[slots] = lengths

    def begin_decode(
        self, slots: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], members: Sequence[RowState], *, size: int
    ) -> None:
        """Send what is new before a graph computes `size` rows: the token at place `lengths[i]` of `members[i]`, which
        is in slot `slots[i]`, and padding. `end_decode` follows when the graph runs."""
        known = self.lengths[slots]
        changed = np.flatnonzero(known != lengths)
        late = np.flatnonzero(self.token_places[slots] != lengths)
        tokens = np.fromiter((members[i].token_ids[lengths[i]] for i in late.tolist()), np.int64, count=len(late))
        wanted = np.full(size, self.scratch_slot, dtype=np.int64)
        wanted[: len(slots)] = slots
        moved = np.flatnonzero(self._sent_slots[:size] != wanted)
        self._send(
            [
                (slots[changed] * NUM_COLUMNS + LENGTH, lengths[changed]),
                (token_place(slots[late]), tokens),
                (self._first_slot_word + moved, wanted[moved]),
            ]
        )
        self.token_places[slots] = lengths
        self._sent_slots[:size] = wanted
        self.lengths[slots] = -1  # unless the graph runs

    def lend(self, slots: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the slots of all tokens of a step without a prompt: `counts` int64 [R] tokens of the sequence in each
        of `slots`, the first of them in its own slot, the others in lent ones, which get its blocks. `begin_decode` and
        a graph follow, for all of these."""
        found = np.repeat(slots, counts)
        is_lent = np.ones(len(found), dtype=np.bool_)
        is_lent[np.cumsum(counts) - counts] = False
        owners = found[is_lent]
        found[is_lent] = lent = np.arange(self.num_slots, self.num_slots + len(owners))
        self._send([])
        there = upload([owners, lent], self._device)
        self.state.index_copy_(0, there[1], self.state.index_select(0, there[0]))
        self.block_table.index_copy_(0, there[1], self.block_table.index_select(0, there[0]))
        self.lengths[lent] = self.token_places[lent] = -1
        return found

    def forget(self, slots: npt.NDArray[np.int64]) -> None:
        """The device changes what it has of these slots, and which ones a graph computes: the host knows neither."""
        self.lengths[slots] = self.token_places[slots] = -1
        self._sent_slots[:] = -1

    def end_decode(self, slots: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """A graph was launched that computes the rows of `begin_decode` and adds one to their lengths."""
        self.lengths[slots] = lengths + 1

    def find_tokens(self, slots: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return where in `words` the device has the tokens at `places` int64 [R] of the sequences in `slots`, which it
        chose and the host does not know yet."""
        assert (self.token_places[slots] == places).all(), "a token that neither host nor device knows"
        return token_place(slots)

    @property
    def words(self) -> torch.Tensor:
        """int64 [W]: what `find_tokens` points into."""
        return self._words

    def put_tokens(
        self, there: torch.Tensor, token_ids: torch.Tensor, slots: npt.NDArray[np.int64], places: npt.NDArray[np.int64]
    ) -> None:
        """Let `token_ids` int64 [R], chosen on the device, be the tokens at `places` of the sequences in `slots`, which
        are int64 [R] on the device, `there`, too."""
        self.token_places[slots] = -1
        self.state[:, TOKEN].index_copy_(0, there, token_ids)
        self.token_places[slots] = places

    def put_chosen(self, step: StepRows, there: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Let the next step begin with `token_ids` int64 [n], chosen on the device for the rows that sample, whose
        slots, where no row has drafts, are `there`. Which one is the last of a row with drafts is not known before the
        step is collected."""
        sampling = step.sampling
        if step.has_drafts:
            stops = np.cumsum(1 + step.num_drafts[sampling])
            last, there = upload([stops - 1, step.slots[sampling]], token_ids.device)
            token_ids = token_ids.index_select(0, last)
        self.put_tokens(there, token_ids, step.slots[sampling], step.stops[sampling])
        if step.has_drafts:
            self.token_places[step.slots[step.num_drafts > 0]] = -1

    def _send(self, words: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]) -> None:
        """Bring all deltas, and (places in `_words`, values) beside them, to the device."""
        parts = [*words, _to_arrays(self._new_words)]
        places, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        blocks = _to_arrays(self._new_blocks)
        if not len(places) and not len(blocks[0]):
            return
        there = upload([places, values, blocks[0], blocks[1].astype(np.int32)], self._device)
        if len(places):
            self._words.index_copy_(0, there[0], there[1])
        if len(blocks[0]):
            self.block_table.view(-1).index_copy_(0, there[2], there[3])
        self._new_words.clear()  # not before: the copy may have failed
        self._new_blocks.clear()


def lend_blocks(rows: DeviceRows, owners: torch.Tensor, lent: torch.Tensor) -> None:
    """Let lent slots int64 [N] have all blocks that the sequences in `owners` int64 [N] have by now."""
    rows._send([])
    rows.block_table.index_copy_(0, lent, rows.block_table.index_select(0, owners))


@overload
def token_place(slot: int) -> int: ...
@overload
def token_place(slot: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
def token_place(slot: int | npt.NDArray[np.int64]) -> int | npt.NDArray[np.int64]:
    """Return where in `DeviceRows.words` the token of a slot is."""
    return slot * NUM_COLUMNS + TOKEN


def begin_decode(
    rows: DeviceRows, slots: torch.Tensor, tables: torch.Tensor, *, block_size: int, num_axes: int
) -> DecodeInput:
    """Gather the input of the sequences in `slots` int64 [n], and add one to their lengths. `tables` int32 [≥ n, M] may
    become the block table."""
    if has_kernels(slots.device):
        from seesay.kernels import row_state

        return DecodeInput(
            *row_state.begin_decode(
                rows.state, rows.block_table, slots, tables, block_size=block_size, num_axes=num_axes
            )
        )
    picked = rows.state.index_select(0, slots)
    lengths = picked[:, LENGTH]
    block_table = rows.block_table.index_select(0, slots)
    blocks = block_table.gather(1, (lengths // block_size)[:, None])[:, 0].long()
    is_valid = slots < rows.scratch_slot
    rows.state[:, LENGTH].index_copy_(0, slots, lengths + is_valid.long())
    return DecodeInput(
        input_ids=picked[:, TOKEN],
        positions=(lengths + picked[:, OFFSET]).expand(num_axes, -1),
        slot_mapping=blocks * block_size + lengths % block_size,
        kv_lens=(lengths + 1).int(),
        stretches=_from_bits(picked[:, STRETCH]),
        faults=torch.zeros(len(slots), device=slots.device),
        is_valid=is_valid,
        block_table=block_table,
    )


def make_draws(rows: DeviceRows, slots: torch.Tensor, drawn: Sequence[int]) -> torch.Tensor:
    """Return the draws, as `sampler.make_draws` does, of the rows `drawn`, ascending, of those whose sequences are in
    `slots` int64 [R], after their lengths were advanced."""
    if len(drawn) == len(slots):
        at = rows.numbers[: len(slots)]
    else:
        [at] = upload([np.array(drawn)], slots.device)
        slots = slots.index_select(0, at)
    if has_kernels(slots.device):
        from seesay.kernels import row_state

        return row_state.make_draws(rows.state, slots, at)
    picked = rows.state.index_select(0, slots)
    mixed = _splitmix64(_splitmix64(picked[:, SEED]) + picked[:, LENGTH])
    points = _shift_right(mixed, 32) * 2 + 1
    return torch.cat((torch.stack((at, points), dim=1), picked[:, OPTIONS:]), dim=1)


def _splitmix64(x: torch.Tensor) -> torch.Tensor:
    """Return the same as the sampler's `_splitmix64`, of the bits of int64."""
    x = x + _to_signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift_right(x, 30)) * _to_signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _to_signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, count: int) -> torch.Tensor:
    """Shift int64, zeros following from the left."""
    return (x >> count) & ((1 << 64 - count) - 1)


def _to_bits(value: float, device: torch.device) -> int:
    """The int64 that has the bits of a float64, or of a float32 where the device has no other."""
    return int(np.float64(value).view(np.int64) if has_float64(device) else np.float32(value).view(np.int32))


def _from_bits(words: torch.Tensor) -> torch.Tensor:
    return words.view(torch.float64) if has_float64(words.device) else words.int().view(torch.float32)


def _to_signed(seed: int) -> int:
    """The int64 that has the bits of a seed of 64 bits."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _to_arrays(values: dict[int, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Keys and values of a dict."""
    count = len(values)
    return np.fromiter(values.keys(), np.int64, count=count), np.fromiter(values.values(), np.int64, count=count)
