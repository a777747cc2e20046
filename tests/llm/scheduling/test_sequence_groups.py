"""Members of a group begin with what others of it have computed, to the token. The engine compares every block that is
read, and every answer, with those of the sequence alone."""

from __future__ import annotations

import numpy as np
import pytest
from llm.fake_engine import NUM_TOKENS, FakeEngine
from llm.scheduling.test_scheduler import make_scheduler, make_sequence, rows, step

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MultimodalInput

BLOCK = 4
GROUP = 7


def make_engine(*, is_ahead: bool = False, num_blocks: int = 64, batch: int = 6) -> FakeEngine:
    """Without the prefix cache, so that all which is shared is shared by groups."""
    config = SchedulerConfig(max_batch_size=batch, max_prefill_token_num=32, session_len=40)
    return FakeEngine(config, BlockPool(num_blocks, BLOCK, enable_prefix_caching=False), is_ahead=is_ahead)


def make_member(
    seq_id: int,
    length: int,
    *,
    other_from: int = 99,
    group_id: int | None = GROUP,
    answer: int = 4,
    stays: bool = False,
) -> Sequence:
    """Equal tokens up to `other_from`, and others behind."""
    token_ids = (np.arange(length) + seq_id * (np.arange(length) >= other_from)) % NUM_TOKENS
    prompt = MultimodalInput(token_ids=token_ids, positions=np.arange(length), next_position=length)
    params = SamplingParams(max_new_tokens=answer, ignore_eos=True)
    return Sequence(seq_id, prompt, params, group_id=group_id, keeps_blocks=stays)


def answer(engine: FakeEngine, *sequences: Sequence) -> list[int]:
    """Returns how many tokens each began with."""
    for seq in sequences:
        engine.add(seq)
    engine.drain()
    return [seq.num_cached_tokens for seq in sequences]


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("length", [12, 13, 14, 15])
def test_answers_to_one_prompt_compute_its_last_token_alone(is_ahead: bool, length: int) -> None:
    engine = make_engine(is_ahead=is_ahead)
    assert answer(engine, *(make_member(seq_id, length) for seq_id in range(3))) == [0, length - 1, length - 1]


@pytest.mark.parametrize("place", [0, 1, 7, 8, 9, 12])
def test_what_members_have_in_common_is_shared(place: int) -> None:
    engine = make_engine()
    first, second = make_member(1, 13), make_member(2, 13, other_from=place)
    assert answer(engine, first, second) == [0, place]


def test_the_longest_common_beginning_counts() -> None:
    engine = make_engine()
    members = [make_member(1, 13, other_from=3), make_member(2, 13, other_from=9), make_member(0, 13)]
    for seq in members[:2]:
        engine.add(seq)
    for _ in range(3):
        engine.step()
    assert answer(engine, members[2]) == [9] and members[1].num_cached_tokens == 3


def test_who_waits_for_one_that_is_aborted_computes_it_at_once() -> None:
    """While the step that would have computed it is under way."""
    sequences = [make_sequence(number, 13, text=0) for number in (1, 2)]
    for seq in sequences:
        seq.group_id = GROUP
    scheduler = make_scheduler(sequences, caching=False)
    assert rows(scheduler.plan_step()) == [(1, 0, 13)] and rows(scheduler.plan_step(only=(2,))) == []
    assert scheduler.abort(1)
    assert rows(scheduler.plan_step(only=(2,))) == [(2, 0, 13)]


def test_nothing_is_shared_beyond_the_group() -> None:
    engine = make_engine()
    members = [make_member(1, 13), make_member(2, 13, group_id=None), make_member(3, 13, group_id=8)]
    assert answer(engine, *members) == [0, 0, 0]


def test_what_stays_is_kept_until_the_group_ends() -> None:
    """As for a search, each of whose texts is a request for one token more."""
    engine = make_engine()
    for length in range(13, 18):
        seq = make_member(length, length, answer=1, stays=True)
        engine.add(seq)
        while engine.scheduler.has_work:
            engine.step()
        assert seq.num_cached_tokens == (0 if length == 13 else length - 1)
        assert engine.pool.num_used == 4 + (length > 13), "it and the one before, whose last blocks differ"
    engine.scheduler.end_group(GROUP)
    assert not engine.pool.num_used
    engine.scheduler.end_group(GROUP)  # nothing is left of it
    engine.collect()


def test_what_is_kept_makes_room_for_who_needs_it() -> None:
    engine = make_engine(num_blocks=8)
    engine.add(make_member(1, 13, answer=1, stays=True))
    while engine.scheduler.has_work:
        engine.step()
    assert engine.pool.num_used == 4
    assert answer(engine, make_member(2, 24, group_id=None)) == [0]
    assert answer(engine, make_member(3, 13)) == [0]


def test_the_prompt_of_one_that_ends_is_kept_for_those_that_wait() -> None:
    engine = make_engine(batch=1)
    assert answer(engine, *(make_member(seq_id, 13, answer=2) for seq_id in range(3))) == [0, 12, 12]
    assert not engine.pool.num_used


def test_what_a_failed_member_computed_is_not_used() -> None:
    engine = make_engine(batch=1)
    first, second = make_member(1, 13), make_member(2, 13)
    engine.add(first)
    engine.add(second)
    engine.step()
    engine.scheduler.finish(1, "error", RuntimeError("broken"))
    del engine.alive[1]
    engine.drain()
    assert second.num_cached_tokens == 0


def test_who_needs_all_outputs_waits_for_no_member() -> None:
    """It computes all of its prompt beside the other one."""
    sequences = [make_sequence(1, 13, text=0), make_sequence(2, 13, text=0, prompt_logprobs=0)]
    for seq in sequences:
        seq.group_id = GROUP
    scheduler = make_scheduler(sequences, caching=False)
    assert rows(scheduler.plan_step()) == [(1, 0, 13), (2, 0, 13)]


def test_who_needs_all_outputs_begins_with_nothing_of_a_member() -> None:
    first, second = make_sequence(1, 13, text=0, max_new_tokens=20), make_sequence(2, 13, text=0, prompt_logprobs=0)
    for seq in (first, second):
        seq.group_id = GROUP
    scheduler = make_scheduler([first], caching=False)
    step(scheduler)
    scheduler.add(second)
    assert rows(scheduler.plan_step()) == [(1, 13, 1), (2, 0, 13)]


def test_a_prompt_is_kept_where_the_one_that_runs_has_not_computed_its_own() -> None:
    """When its sequence ends, for those that wait."""
    engine = make_engine(batch=2)
    members = [make_member(1, 13, answer=1), make_member(2, 13, other_from=5, answer=20), make_member(1, 13)]
    for number, seq in enumerate(members):
        seq.seq_id = number
        engine.add(seq)
    engine.step()
    assert [seq.num_cached_tokens for seq in members] == [0, 0, 0] and 0 not in engine.scheduler.sequences
    assert engine.scheduler._live.groups.tables(), "the third one waits, and the second one has not begun its answer"
    engine.drain()
    assert members[2].num_cached_tokens == 12
