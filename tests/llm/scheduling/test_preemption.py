"""Blocks for a row, and who loses blocks for it."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from llm.scheduling.test_scheduler import make_scheduler, make_sequence, rows, step

from seesay.llm.plans.token_runs import TokenRuns
from seesay.llm.scheduling.preemption import Preemption
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus


def run(*sequences: Sequence, blocks: int, batch: int = 8) -> tuple[Scheduler, Preemption]:
    """A scheduler whose sequences have been computed up to the first token of their answers, and are not in flight."""
    scheduler = make_scheduler(sequences, blocks=blocks, caching=False, batch=batch)
    step(scheduler)
    assert all(seq.status is SequenceStatus.RUNNING for seq in sequences)
    return scheduler, scheduler._preemption


def answering(seq_id: int, num_tokens: int, owner: Hashable = None) -> Sequence:
    seq = make_sequence(seq_id, num_tokens, max_new_tokens=40)
    seq.owner = owner
    return seq


@pytest.mark.parametrize("num_victims", [1, 2, 3])
def test_one_reservation_takes_the_blocks_of_as_many_as_it_needs(num_victims: int) -> None:
    """The next tokens see each other, so that a step has all of them or none; each of the younger ones has a block."""
    seq = answering(1, 4)
    _, preemption = run(seq, *(answering(2 + number, 3) for number in range(3)), blocks=4)
    seq.runs = TokenRuns(np.array([[4], [4 + 4 * num_victims]]))
    preempted: list[int] = []
    assert preemption.reserve(seq, 1, preempted) == 4 * num_victims
    assert preempted == [4, 3, 2][:num_victims], "the youngest first"
    assert len(seq.block_ids) == 1 + num_victims and preemption.total_preemptions == num_victims


def test_no_more_is_taken_than_one_token_needs() -> None:
    seq = answering(1, 4)
    _, preemption = run(seq, answering(2, 3), answering(3, 3), blocks=3)
    preempted: list[int] = []
    assert preemption.reserve(seq, 10, preempted) == 4 and preempted == [3]
    assert preemption.reserve(seq, 0, preempted) == 0
    assert preemption.reserve(seq, 4, preempted) == 4 and preempted == [3], "they are within its blocks"
    assert len(seq.block_ids) == 2 and seq.num_preemptions == 0


def test_who_is_younger_than_all_others_takes_nothing() -> None:
    seq = answering(2, 4)
    _, preemption = run(answering(1, 4), seq, blocks=2)
    preempted: list[int] = []
    assert preemption.reserve(seq, 1, preempted) == 0
    assert not preempted and len(seq.block_ids) == 1 and preemption.total_preemptions == 0


def test_free_blocks_are_taken_before_anybody_is_preempted() -> None:
    seq = answering(1, 4)
    _, preemption = run(seq, answering(2, 4), blocks=4)
    preempted: list[int] = []
    assert preemption.reserve(seq, 8, preempted) == 8 and not preempted
    assert len(seq.block_ids) == 3


def test_what_is_in_flight_keeps_its_blocks_and_the_next_one_loses_its_own() -> None:
    seq, middle, youngest = answering(1, 4), answering(2, 3), answering(3, 3)
    scheduler, preemption = run(seq, middle, youngest, blocks=3)
    plan = scheduler.plan_step({3})
    assert rows(plan) == [(3, 3, 1)] and youngest.is_in_flight
    preempted: list[int] = []
    assert preemption.reserve(seq, 1, preempted) == 1 and preempted == [2]


def test_the_owner_with_most_running_loses_its_blocks_first() -> None:
    sequences = [answering(1, 3, "many"), answering(2, 3, "many"), answering(3, 4, "one")]
    _, preemption = run(*sequences, blocks=3)
    preempted: list[int] = []
    assert preemption.reserve(sequences[2], 1, preempted) == 1 and preempted == [2]
    assert preemption.reserve(sequences[2], 5, preempted) == 4 and preempted == [2], "as many each now"


# --- who gives up its place for another owner -------------------------------------------------------------------------


def make_unequal(num_running: int, *, batch: int, prompt: int = 3, blocks: int = 3) -> tuple[Scheduler, Preemption]:
    """One owner runs as many, and one sequence of another owner waits."""
    sequences = [answering(1 + number, 3, "many") for number in range(num_running)]
    scheduler, preemption = run(*sequences, blocks=blocks, batch=batch)
    scheduler.add(answering(100, prompt, "one"))
    return scheduler, preemption


def test_a_place_is_given_up_where_all_are_taken() -> None:
    scheduler, preemption = make_unequal(3, batch=3)
    yielding = preemption.find_yielding(lacks_blocks=False)
    assert yielding is scheduler.sequences[3], "the youngest"
    _, has_places = make_unequal(3, batch=4)
    assert has_places.find_yielding(lacks_blocks=False) is None


def test_where_places_are_lacking_blocks_do_not_count() -> None:
    scheduler, preemption = make_unequal(3, batch=3, prompt=13, blocks=4)
    assert preemption.find_yielding(lacks_blocks=True) is scheduler.sequences[3]
    equal, nobody = run(answering(1, 3, "a"), answering(2, 3, "b"), blocks=2, batch=2)
    equal.add(answering(3, 3, "b"))
    assert nobody.find_yielding(lacks_blocks=True) is None


@pytest.mark.parametrize(("prompt", "yields"), [(1, True), (12, True), (13, False)])
def test_blocks_are_given_up_as_long_as_the_other_owner_then_has_no_more(prompt: int, yields: bool) -> None:
    """Three blocks of four tokens, which the other owner may have as well."""
    scheduler, preemption = make_unequal(3, batch=8, prompt=prompt, blocks=4)
    found = preemption.find_yielding(lacks_blocks=True)
    assert found is (scheduler.sequences[3] if yields else None)


def test_nothing_is_given_up_within_one_owner_or_where_nobody_waits() -> None:
    scheduler, preemption = run(answering(1, 3), answering(2, 3), blocks=2, batch=2)
    scheduler.add(answering(3, 3))
    assert preemption.find_yielding(lacks_blocks=True) is None, "one owner"
    sequences = [answering(1, 3, "a"), answering(2, 3, "a"), answering(3, 3, "a"), answering(4, 3, "b")]
    _, nobody_waits = run(*sequences, blocks=4, batch=4)
    assert nobody_waits.find_yielding(lacks_blocks=True) is None


def test_who_is_preempted_is_counted_and_waits_again() -> None:
    seq = answering(1, 4)
    scheduler, preemption = run(seq, blocks=2)
    preemption.preempt(seq)
    assert (seq.num_preemptions, preemption.total_preemptions) == (1, 1)
    assert seq.status is SequenceStatus.PREEMPTED and not seq.block_ids
    assert scheduler.stats().total_preemptions == 1


def test_nobody_gives_up_blocks_that_the_next_one_would_have_more_of() -> None:
    """With those that its owner already holds."""
    rich = [answering(number, 6, "rich") for number in (1, 2, 3)]
    poor = answering(4, 6, "poor")
    for prompt, yields in ((8, True), (16, True), (17, False)):
        scheduler, preemption = run(*[answering(seq.seq_id, 6, seq.owner) for seq in (*rich, poor)], blocks=9)
        scheduler.add(answering(5, prompt, "poor"))
        found = preemption.find_yielding(lacks_blocks=True)
        assert found is (scheduler.sequences[3] if yields else None), prompt


def test_kept_blocks_of_groups_are_given_back_before_anybody_is_preempted() -> None:
    """A step that needs one block takes no more of them than that."""
    members = [make_sequence(number, 4, text=0, max_new_tokens=1) for number in (1, 2)]
    for number, seq in enumerate(members):
        seq.group_id, seq.keeps_blocks = number, True
    scheduler = make_scheduler([*members, first := answering(3, 4), second := answering(4, 3)], blocks=4, caching=False)
    step(scheduler)
    assert scheduler.stats().num_used_kv_blocks == 4 and len(scheduler.sequences) == 2
    preempted: list[int] = []
    assert scheduler._preemption.reserve(first, 1, preempted) == 1 and not preempted
    assert scheduler.stats().num_used_kv_blocks == 4 and len(first.block_ids) == 2 and len(second.block_ids) == 1
