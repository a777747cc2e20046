"""What is sent to the device, when, and what is there then."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from llm.running.test_row_table import make_begun

from seesay.device.transfers import upload
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import AddedBlocks, StepPlan
from seesay.llm.running import device_rows
from seesay.llm.running.device_rows import LENGTH, OFFSET, OPTIONS, SEED, TOKEN, DeviceRows, begin_decode, make_draws
from seesay.llm.running.row_table import RowTable
from seesay.llm.running.sampler import POINT_BITS, draw_words

NUM_SLOTS, BLOCK_SIZE, SCRATCH = 6, 4, 77
CPU = torch.device("cpu")


class Device:
    """A row table with its part on the device, and what is sent there: the numbers of each copy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = RowTable()
        self.rows = DeviceRows(num_slots=NUM_SLOTS, max_blocks=8, scratch_block=SCRATCH, device=CPU)
        self.sent: list[tuple[int, int]] = []  # words and blocks
        self.fails = False

        def watch(arrays: Any, device: torch.device) -> list[torch.Tensor]:
            if self.fails:
                raise RuntimeError("out of memory")
            if len(arrays) > 1:  # else the numbers of rows that are drawn
                self.sent.append((len(arrays[0]), len(arrays[2])))
            return upload(arrays, device)

        monkeypatch.setattr(device_rows, "upload", watch)

    def apply(self, **deltas: Any) -> None:
        plan = StepPlan(**deltas)
        self.table.apply(plan)
        self.rows.take(plan, self.table)

    def decode(self, places: dict[int, int], size: int) -> device_rows.DecodeInput:
        """Compute the tokens at these places of sequences, by id, as a graph does, and choose 1000 + place."""
        slots, lengths = self.locate(places)
        self.rows.begin_decode(slots, lengths, [self.table[i] for i in places], size=size)
        given = begin_decode(
            self.rows, self.rows.slots[:size], self.rows.block_table, block_size=BLOCK_SIZE, num_axes=3
        )
        self.rows.end_decode(slots, lengths)
        self.rows.put_tokens(self.rows.slots[: len(slots)], torch.from_numpy(1000 + lengths), slots, lengths + 1)
        return given

    def locate(self, places: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
        slots = np.array([self.table[i].slot for i in places], dtype=np.int64)
        return slots, np.array(list(places.values()), dtype=np.int64)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Three sequences of 10 prompt tokens, 100 … 109, and three blocks each."""
    device = Device(monkeypatch)
    ids = 1, 2, 3
    blocks = tuple(AddedBlocks(i, (10 * i, 10 * i + 1, 10 * i + 2)) for i in ids)
    device.apply(begun=tuple(make_begun(10, seq_id=i) for i in ids), added_blocks=blocks)
    return device


def test_a_step_that_goes_on_takes_nothing_from_the_host(device: Device) -> None:
    slots, _ = device.locate({1: 0, 2: 0, 3: 0})
    device.rows.begin_step(slots, np.array([10, 10, 9]))
    device.rows.put_tokens(torch.from_numpy(slots[:2]), torch.tensor([501, 502]), slots[:2], np.array([10, 10]))
    [(_, num_blocks)] = device.sent
    assert num_blocks == 9
    given = device.decode({2: 10, 1: 10}, size=4)
    assert device.sent[1:] == [(2, 0)], "where the two rows are; padding is there from the beginning"
    assert given.input_ids[:2].tolist() == [502, 501] and given.kv_lens.tolist() == [11, 11, 1, 1]
    assert given.slot_mapping.tolist() == [22 * 4 + 2, 12 * 4 + 2, SCRATCH * 4, SCRATCH * 4]
    assert given.positions[:, :2].tolist() == [[50, 50]] * 3
    assert given.block_table[:2, :3].tolist() == [[20, 21, 22], [10, 11, 12]]
    given = device.decode({2: 11, 1: 11}, size=4)
    assert device.sent[2:] == []
    assert given.input_ids[:2].tolist() == [1010, 1010] and given.positions[0, :2].tolist() == [51, 51]
    device.apply(added_blocks=(AddedBlocks(1, (19,)),))
    given = device.decode({1: 12}, size=1)
    assert device.sent[2:] == [(1, 1)], "a block, and the slot of the row that now comes first"
    assert given.slot_mapping.tolist() == [19 * 4] and given.input_ids.tolist() == [1011]


def test_what_the_device_lacks_is_sent(device: Device) -> None:
    """A row whose token the host alone knows, and a step that is computed again."""
    first = device.table[1]
    first.record(10, (600,))
    first.record(11, (601,))
    given = device.decode({1: 11}, size=1)
    assert (given.input_ids.tolist(), given.kv_lens.tolist()) == ([601], [12])
    again = device.decode({1: 11}, size=1)
    assert (again.input_ids.tolist(), again.kv_lens.tolist()) == ([601], [12])
    assert device.sent[1:] == [(2, 0)], "the length and the token"


def test_nothing_is_lost_when_a_copy_or_a_graph_fails(device: Device) -> None:
    device.table[1].record(10, (600,))
    device.fails = True
    with pytest.raises(RuntimeError):
        device.decode({1: 10}, size=1)
    device.fails = False
    slots, lengths = device.locate({1: 10})
    device.rows.begin_decode(slots, lengths, [device.table[1]], size=1)  # its graph fails, before or behind its work
    device.rows.state[slots, LENGTH] += 1
    given = device.decode({1: 10}, size=1)
    assert given.input_ids.tolist() == [600] and given.kv_lens.tolist() == [11]
    assert given.block_table[0, :3].tolist() == [10, 11, 12]


def test_a_slot_that_is_used_again_has_nothing_of_its_last_owner(device: Device) -> None:
    device.table[1].record(10, (600,))
    device.decode({1: 10}, size=1)
    device.apply(ended_ids=(1,), begun=(make_begun(5, seq_id=9),), added_blocks=(AddedBlocks(9, (70, 71)),))
    row = device.table[9]
    assert row.slot == 0
    with pytest.raises(AssertionError, match="neither host nor device"):
        device.rows.find_tokens(np.array([0]), np.array([11]))
    row.record(5, (900,))
    given = device.decode({9: 5}, size=1)
    assert given.input_ids.tolist() == [900] and given.slot_mapping.tolist() == [71 * 4 + 1]
    assert given.positions[0].tolist() == [50] and device.rows.state[0, OFFSET] == 45


def test_more_sequences_than_slots_are_refused(device: Device) -> None:
    with pytest.raises(AssertionError, match="more than 6 sequences"):
        device.apply(begun=tuple(make_begun(seq_id=i) for i in range(4, 8)))


def test_seeds_and_options_of_draws_are_there(device: Device) -> None:
    params = SamplingParams(greedy=False, temperature=0.5, top_k=9, top_p=0.7, min_p=0.1)
    begun = make_begun(4, seq_id=8, params=params, seed=(1 << 64) - 5)
    device.apply(begun=(begun,))
    slots, _ = device.locate({8: 0})
    device.rows.begin_step(slots, np.array([4]))
    assert device.rows.state[slots[0], SEED] == -5
    [words] = draw_words([params]).tolist()
    assert device.rows.state[slots[0], OPTIONS:].tolist() == words
    there = torch.tensor([0, *slots, 1])
    [draw] = make_draws(device.rows, there, [1]).tolist()
    assert draw[0] == 1 and 0 < draw[1] < 1 << POINT_BITS and draw[2:] == words
    assert make_draws(device.rows, there, [0, 1, 2])[1].tolist() == draw


def test_sequences_that_come_and_go_have_their_own_state(device: Device) -> None:
    """Random steps, with and without graphs, of random rows, against what each sequence should have."""
    rng, next_id, next_block = random.Random(1), 10, 100
    places, tokens = {1: 10, 2: 10, 3: 10}, {1: 0, 2: 0, 3: 0}
    blocks = {i: [10 * i, 10 * i + 1, 10 * i + 2] for i in places}
    for row in device.table:
        row.record(10, (0,))
    for _ in range(300):
        ended = [i for i in places if places[i] == 31 or rng.random() < 0.05]
        for i in ended:
            del places[i], tokens[i], blocks[i]
        begun, added = [], []
        while len(places) < NUM_SLOTS and rng.random() < 0.3:
            begun.append(make_begun(7, seq_id=next_id))
            places[next_id], tokens[next_id], blocks[next_id] = 7, next_id, []
            next_id += 1
        for i, place in places.items():
            if len(blocks[i]) * BLOCK_SIZE <= place:
                new = tuple(range(next_block, next_block + place // BLOCK_SIZE + 1 - len(blocks[i])))
                next_block += len(new)
                blocks[i] += new
                added.append(AddedBlocks(i, new))
        device.apply(ended_ids=tuple(ended), begun=tuple(begun), added_blocks=tuple(added))
        for one in begun:
            device.table[one.seq_id].record(7, (tokens[one.seq_id],))
        chosen = rng.sample(sorted(places), rng.randint(0, len(places)))
        if not chosen:
            continue
        asked = {i: places[i] for i in chosen}
        slots, lengths = device.locate(asked)
        if rng.random() < 0.7:
            given = device.decode(asked, size=rng.randint(len(chosen), NUM_SLOTS))
            assert given.input_ids[: len(chosen)].tolist() == [tokens[i] for i in chosen]
            assert given.kv_lens[: len(chosen)].tolist() == [places[i] + 1 for i in chosen]
            for own, i in zip(given.block_table, chosen, strict=False):
                assert own[: len(blocks[i])].tolist() == blocks[i]
        else:
            device.rows.begin_step(slots, lengths + 1)
            device.rows.put_tokens(torch.from_numpy(slots), torch.from_numpy(1000 + lengths), slots, lengths + 1)
        for i in chosen:
            tokens[i] = 1000 + places[i]
            places[i] += 1
            device.table[i].record(places[i], (tokens[i],))
        assert device.rows.state[slots, LENGTH].tolist() == (lengths + 1).tolist()
        assert device.rows.state[slots, TOKEN].tolist() == [tokens[i] for i in chosen]
    assert next_id > 40
