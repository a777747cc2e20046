"""Slots of states: they are waited for, kept behind blocks, found by content alone, and lost with failed steps."""

from __future__ import annotations

import numpy as np
import pytest
from llm.fake_engine import FakeEngine

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots
from seesay.values import MediaItem, Modality, MultimodalInput

BLOCK, SPACING = 4, 12


def make_engine(
    num_states: int, *, is_ahead: bool = False, budget: int = 16, caching: bool = True, num_on_host: int = 0
) -> FakeEngine:
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=budget, session_len=40, num_adapter_slots=2)
    states = StateSlots(
        num_states, SnapshotPlaces(BLOCK, SPACING), enable_prefix_caching=caching, num_host_slots=num_on_host
    )
    return FakeEngine(config, BlockPool(60, BLOCK, caching), is_ahead=is_ahead, states=states)


def make_sequence(
    seq_id: int, length: int, *, first: int = 0, max_new_tokens: int = 4, salt: bytes = b"", adapter: int = 0
) -> Sequence:
    token_ids = (np.arange(length) + first) % 5
    prompt = MultimodalInput(token_ids=token_ids, positions=np.arange(length), next_position=length)
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    return Sequence(seq_id, prompt, params, cache_salt=salt, adapter_id=adapter)


def slots_of(engine: FakeEngine) -> StateSlots:
    states = engine.scheduler._live.states
    assert states is not None
    return states


def rows_of(engine: FakeEngine, seq_id: int) -> list[tuple[int, int]]:
    return [(row.start, row.num_tokens) for plan in engine.plans for row in plan.rows if row.seq_id == seq_id]


def answer(engine: FakeEngine, seq: Sequence) -> Sequence:
    engine.add(seq)
    engine.drain()
    return seq


def test_rows_end_where_states_are_kept() -> None:
    """Behind every 12 tokens, and behind the last full block of the prompt."""
    engine = make_engine(8)
    answer(engine, make_sequence(1, 30, max_new_tokens=1))
    assert rows_of(engine, 1) == [(0, 12), (12, 12), (24, 4), (28, 2)]
    assert slots_of(engine).pool.num_cached == 3


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_sequence_goes_on_behind_the_last_snapshot(is_ahead: bool) -> None:
    engine = make_engine(8, is_ahead=is_ahead)
    answer(engine, make_sequence(1, 30))
    again = answer(engine, make_sequence(2, 30))
    longer = answer(engine, make_sequence(3, 38))
    shorter = answer(engine, make_sequence(4, 22))
    assert [again.num_cached_tokens, longer.num_cached_tokens, shorter.num_cached_tokens] == [28, 28, 12]


def test_the_next_turn_goes_on_behind_the_answer() -> None:
    engine = make_engine(8)
    first = answer(engine, make_sequence(1, 9, max_new_tokens=13))
    prompt = MultimodalInput(
        token_ids=np.concatenate((first.token_ids, first.token_ids[:6])), positions=np.arange(28), next_position=28
    )
    second = Sequence(2, prompt, SamplingParams(max_new_tokens=2, ignore_eos=True))
    answer(engine, second)
    assert second.num_cached_tokens == 20, "21 tokens were computed, and blocks have 4"
    assert slots_of(engine).total_snapshots > slots_of(engine).pool.num_cached, "those within an answer do not stay"


@pytest.mark.parametrize("other", [{"salt": b"another"}, {"adapter": 3}])
def test_snapshots_are_not_shared_between_salts_and_adapters(other: dict[str, int]) -> None:
    engine = make_engine(8)
    answer(engine, make_sequence(1, 30))
    assert answer(engine, make_sequence(2, 30, **other)).num_cached_tokens == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_sequences_wait_for_a_slot(is_ahead: bool) -> None:
    engine = make_engine(2, is_ahead=is_ahead)
    for seq_id in range(5):
        engine.add(make_sequence(seq_id, 6, first=seq_id))
    engine.step()
    assert engine.scheduler.stats().num_running == 2 and slots_of(engine).pool.num_used == 2
    engine.drain()
    assert not slots_of(engine).pool.num_used


def test_one_slot_is_enough_to_go_on_with_a_snapshot() -> None:
    """There is no other slot to copy it to: it becomes the state."""
    engine = make_engine(1)
    engine.add(first := make_sequence(1, 30, max_new_tokens=1))
    engine.drain()
    assert not slots_of(engine).pool.num_cached, "its own slot was never free"
    engine = make_engine(2)
    answer(engine, first := make_sequence(1, 30, max_new_tokens=1))
    engine.add(make_sequence(2, 3, first=1, max_new_tokens=30))
    engine.step()
    engine.add(second := make_sequence(3, 30))
    engine.drain()
    assert first.num_cached_tokens == 0 and second.num_cached_tokens == 28


@pytest.mark.parametrize("is_ahead", [False, True])
def test_snapshots_move_to_the_host_and_back(is_ahead: bool) -> None:
    """The engine compares the state that comes back with that of all tokens before it."""
    engine = make_engine(2, is_ahead=is_ahead, num_on_host=12)
    prompts = [make_sequence(seq_id, 30, first=seq_id, max_new_tokens=2) for seq_id in range(4)]
    for seq in prompts:
        answer(engine, seq)
    assert slots_of(engine).pool.num_cached <= 2 and slots_of(engine).pool.host.num_used > 6
    again = [answer(engine, make_sequence(10 + n, 30, first=n)) for n in range(4)]
    assert [seq.num_cached_tokens for seq in again] == [28] * 4
    assert slots_of(engine).pool.host.total_loads > 2
    slots_of(engine).forget_all()
    assert answer(engine, make_sequence(20, 30, first=1)).num_cached_tokens == 0


def test_states_on_the_host_are_lost_with_the_steps_that_move_them() -> None:
    engine = make_engine(2, budget=9, num_on_host=4)
    for seq_id in range(6):
        engine.add(make_sequence(seq_id, 14 + seq_id, first=seq_id % 2, max_new_tokens=3))
    has_moved = False
    for _ in range(40):
        if engine.scheduler.has_work:
            engine.step()
            lost = engine.lose(with_the_one_before=False, spoils=True)
            has_moved = has_moved or any(min(copy) < 0 for copy in lost.state_copies)
            while engine.scheduler.is_behind(ids := [row.seq_id for row in lost.rows]):
                engine.step(only=ids)
    engine.drain()
    assert has_moved


def test_without_the_prefix_cache_nothing_is_kept() -> None:
    """And no row ends where it would be."""
    engine = make_engine(8, caching=False)
    answer(engine, make_sequence(1, 30))
    assert rows_of(engine, 1)[:2] == [(0, 16), (16, 14)]
    assert answer(engine, make_sequence(2, 30)).num_cached_tokens == 0
    assert not slots_of(engine).total_snapshots


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("with_the_one_before", [False, True])
def test_states_are_lost_with_failed_steps(is_ahead: bool, with_the_one_before: bool) -> None:
    """The engine compares the state that a row finds with that of all tokens before it."""
    engine = make_engine(6, is_ahead=is_ahead, budget=9)
    for seq_id in range(3):
        engine.add(make_sequence(seq_id, 14 + seq_id, first=seq_id, max_new_tokens=9))
    for _ in range(7):
        engine.step()
        lost = engine.lose(with_the_one_before=with_the_one_before, spoils=True)
        ids = [row.seq_id for row in lost.rows]
        assert not ids or engine.scheduler.is_behind(ids)
        while engine.scheduler.is_behind(ids):
            engine.step(only=ids)
    engine.drain()


def test_states_of_a_faulty_sequence_are_found_by_nobody() -> None:
    engine = make_engine(8)
    engine.add(make_sequence(1, 30))
    for _ in range(4):
        engine.step()
    engine.scheduler.forget_blocks(1)
    assert not slots_of(engine).pool.num_cached
    engine.end(1)
    assert answer(engine, make_sequence(2, 30)).num_cached_tokens == 0


def test_states_behind_forgotten_prefixes_are_not_kept() -> None:
    """Nobody could find the blocks before them."""
    engine = make_engine(8)
    engine.add(make_sequence(1, 30))
    engine.step()
    engine.step()
    engine.scheduler.forget_prefixes()
    num_before = slots_of(engine).total_snapshots
    engine.drain()
    assert slots_of(engine).total_snapshots == num_before and not slots_of(engine).pool.num_cached


def test_a_preempted_sequence_goes_on_behind_a_snapshot() -> None:
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=16, session_len=40)
    states = StateSlots(8, SnapshotPlaces(BLOCK, SPACING))
    engine = FakeEngine(config, BlockPool(12, BLOCK), states=states)
    sequences = [make_sequence(seq_id, 14, first=seq_id, max_new_tokens=20) for seq_id in range(2)]
    for seq in sequences:
        engine.add(seq)
    engine.drain()
    assert engine.scheduler.stats().total_preemptions
    begun = [begun for plan in engine.plans for begun in plan.begun if begun.seq_id == 1]
    assert len(begun) > 1 and any(start for start, _ in rows_of(engine, 1) if start >= 12)


def test_equal_prompts_are_computed_once() -> None:
    engine = make_engine(8)
    for seq_id in range(4):
        engine.add(make_sequence(seq_id, 30))
    engine.drain()
    computed = [row.num_tokens for plan in engine.plans for row in plan.rows if row.start < 30]
    assert sum(computed) == 30 + 3 * 2


def make_branch(seq_id: int, num_shared: int, length: int = 20) -> Sequence:
    """A prompt that has `num_shared` tokens in common with the others."""
    token_ids = np.concatenate((np.arange(num_shared) % 5, np.full(length - num_shared, 5 + seq_id)))
    prompt = MultimodalInput(token_ids=token_ids, positions=np.arange(length), next_position=length)
    return Sequence(seq_id, prompt, SamplingParams(max_new_tokens=2, ignore_eos=True))


@pytest.mark.parametrize("is_ahead", [False, True])
def test_where_prompts_part_a_state_is_kept_for_the_third(is_ahead: bool) -> None:
    """The second one finds keys and values that no state belongs to, and keeps one there."""
    engine = make_engine(8, is_ahead=is_ahead)
    assert [answer(engine, make_branch(n, 11)).num_cached_tokens for n in range(4)] == [0, 0, 8, 8]
    assert rows_of(engine, 1)[:2] == [(0, 8), (8, 4)]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_common_beginning_is_computed_twice_at_most(is_ahead: bool) -> None:
    engine = make_engine(12, is_ahead=is_ahead)
    sequences = [make_branch(n, 11) for n in range(8)]
    for seq in sequences:
        engine.add(seq)
    engine.drain()
    assert sorted(seq.num_cached_tokens for seq in sequences) == [0, 0, *[8] * 6]


def test_a_state_is_kept_behind_the_last_picture() -> None:
    engine = make_engine(8)

    def make(seq_id: int) -> Sequence:
        token_ids = np.concatenate((np.zeros(7, np.int64), np.full(13, seq_id)))
        slots = np.arange(1, 6)
        item = MediaItem(modality=Modality.IMAGE, span=(1, 6), slots=slots, hash=bytes(32), features={}, num_units=5)
        prompt = MultimodalInput(token_ids=token_ids, positions=np.arange(20), next_position=20, items=(item,))
        return Sequence(seq_id, prompt, SamplingParams(max_new_tokens=2, ignore_eos=True))

    assert [answer(engine, make(n)).num_cached_tokens for n in range(3)] == [0, 4, 4]


@pytest.mark.parametrize(
    ("start", "num_known", "size"),
    [
        (0, 3, 3),
        (0, 4, 4),
        (0, 5, 4),
        (0, 40, 12),
        (12, 40, 12),
        (24, 40, 12),
        (24, 32, 4),
        (24, 33, 8),
        (36, 40, 4),
        (16, 18, 2),
        (3, 20, 9),
    ],
)
def test_the_size_of_a_row(start: int, num_known: int, size: int) -> None:
    assert SnapshotPlaces(BLOCK, SPACING).fit(start, num_known - start, num_known) == size


def test_places_of_one_prompt() -> None:
    places = SnapshotPlaces(BLOCK, SPACING)
    assert places.add(0) == places.add(3) == places.add(25) == places
    more = places.add(23).add(18).add(22)
    assert more.ends == (20, 16) and more.has(20, 40) and more.has(16, 40) and not places.has(20, 40)
    assert [more.fit(start, 40 - start, 40) for start in (12, 16, 18, 20, 24)] == [4, 4, 2, 4, 12]


def draft(engine: FakeEngine) -> list[int]:
    """Plan a step for which three tokens are proposed to each. Returns how many each row has."""
    plan = engine.scheduler.plan_step(drafts=dict.fromkeys(engine.scheduler.sequences, (1, 2, 3)))
    return [len(row.drafts) for row in plan.rows]


@pytest.mark.parametrize(("num_states", "num_drafts"), [(2, [0, 0]), (3, [3, 0]), (4, [3, 3])])
def test_tokens_are_proposed_where_a_slot_keeps_the_state_before_them(num_states: int, num_drafts: list[int]) -> None:
    engine = make_engine(num_states, caching=False)
    for seq_id in (1, 2):
        engine.add(make_sequence(seq_id, 6, first=seq_id, max_new_tokens=20))
    engine.step()
    assert draft(engine) == num_drafts
    assert slots_of(engine).pool.num_used == 2 + sum(map(bool, num_drafts))
    spares = [seq.spare_slot for seq in engine.scheduler.sequences.values()]
    assert [spare >= 0 for spare in spares] == [bool(each) for each in num_drafts]
    for seq_id in (1, 2):
        engine.scheduler.abort(seq_id)
    assert not slots_of(engine).pool.num_used


def test_the_state_goes_back_before_wrong_tokens_and_stays_behind_right_ones() -> None:
    """The slot of the copy is free again with the next row, or at once."""
    engine = make_engine(4, caching=False)
    seq = make_sequence(1, 6, max_new_tokens=30)
    engine.add(seq)
    engine.step()
    for num_right, start in ((3, 10), (1, 10)):
        plan = engine.scheduler.plan_step(drafts={1: (1, 2, 3)})
        engine.scheduler.commit_step(plan, {1: (1, 2, 3, 4)[: num_right + 1]})
        assert (seq.spare_slot < 0) is (num_right == 3) and seq.num_scheduled == start
    spare = seq.spare_slot
    plan = engine.scheduler.plan_step()
    assert [(row.start, row.num_tokens) for row in plan.rows] == [(10, 3)]
    assert plan.state_copies == ((spare, seq.state_slot),) and seq.spare_slot < 0
    assert slots_of(engine).pool.num_used == 1


@pytest.mark.every_case
@pytest.mark.parametrize("place", range(-4, 45))
def test_states_are_kept_at_places_that_are_known(place: int) -> None:
    """At each multiple of the spacing, and behind the last full block of what is known, which may be its end."""
    places = SnapshotPlaces(BLOCK, SPACING)
    for num_known in (16, 18, 20, 40):
        is_last = place % BLOCK == 0 and place in range(num_known - BLOCK, num_known + 1)
        assert places.has(place, num_known) is (0 < place <= num_known and (place % SPACING == 0 or is_last)), num_known
    assert not SnapshotPlaces(BLOCK, SPACING, is_empty=True).has(place, 40)
    assert SnapshotPlaces(BLOCK, SPACING, is_empty=True).fit(max(0, place), 30, 60) == 30


def test_a_snapshot_that_is_found_again_is_the_last_to_make_room() -> None:
    """One that is to be kept and is there is used once more."""
    engine = make_engine(3)
    answer(engine, make_sequence(1, 13, max_new_tokens=1))
    answer(engine, make_sequence(2, 13, first=1, max_new_tokens=1))
    assert slots_of(engine).pool.num_cached == 2
    answer(engine, make_sequence(3, 14, max_new_tokens=1))
    answer(engine, make_sequence(4, 13, first=2, max_new_tokens=1))
    assert answer(engine, make_sequence(5, 13, max_new_tokens=1)).num_cached_tokens == 12
    assert answer(engine, make_sequence(6, 13, first=1, max_new_tokens=1)).num_cached_tokens == 0


def test_snapshots_of_an_answer_are_kept_one_at_a_time_but_for_those_at_the_spacing() -> None:
    engine = make_engine(20)
    answer(engine, make_sequence(1, 9, max_new_tokens=28))
    states = slots_of(engine)
    assert states.total_snapshots > states.pool.num_cached
    seq = make_sequence(2, 9)
    assert answer(engine, seq).num_cached_tokens == 8
    assert states.pool.num_cached == 1 + 3 + (36 % SPACING != 0), "of the prompt, behind 12, 24 and 36 tokens"
