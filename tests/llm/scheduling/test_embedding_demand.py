"""Which embeddings are asked for, when, and until when they are needed."""

from __future__ import annotations

from typing import Any

import pytest
from llm.scheduling.test_scheduler import make_sequence, picture_hash

from seesay.llm.plans.step_plan import EncodeJob
from seesay.llm.scheduling import embedding_demand
from seesay.llm.scheduling.embedding_demand import EmbeddingDemand, EmbeddingRef
from seesay.llm.scheduling.sequence import EmbeddingState, Sequence, SequenceStatus

ABSENT, REQUESTED = EmbeddingState.ABSENT, EmbeddingState.REQUESTED
READY, DONE = EmbeddingState.READY, EmbeddingState.DONE


class Parts:
    """A demand for no more rows than `max_rows`, of sequences. `cached` tokens of each are in the prefix cache."""

    def __init__(self, max_rows: int = 100) -> None:
        self.demand = EmbeddingDemand(max_rows)
        self.sequences: dict[int, Sequence] = {}
        self.cached = 0

    def add(self, *pictures: Any, runs: bool = False, num_tokens: int = 40) -> Sequence:
        number = len(self.sequences)
        seq = make_sequence(number, num_tokens, *pictures)
        seq.arrival = seq.place = number
        if runs:
            seq.status = SequenceStatus.RUNNING
        self.sequences[number] = seq
        self.demand.track(seq)
        return seq

    def plan(self, max_chunk: int = 64) -> tuple[list[tuple[int, int]], list[int]]:
        """What is asked for, and who may start."""
        jobs, admissible = self.demand.plan_jobs(lambda _: self.cached, max_chunk)
        assert all(
            job == EncodeJob(seq_id=job.seq_id, item_index=job.item_index, hash=self._item(job).hash) for job in jobs
        )
        self.demand.check_integrity(self.sequences)
        return [(job.seq_id, job.item_index) for job in jobs], [seq.seq_id for seq in admissible]

    def _item(self, job: EncodeJob) -> Any:
        return self.sequences[job.seq_id].items[job.item_index]

    def drop(self, seq: Sequence) -> None:
        self.demand.drop(seq)
        del self.sequences[seq.seq_id]
        self.demand.check_integrity(self.sequences)


def test_pictures_are_asked_for_in_the_order_of_places() -> None:
    """Those of running sequences first, and each once."""
    parts = Parts()
    parts.add((2, 4, 1), (6, 8, 2))
    parts.add((3, 5, 1))
    parts.add((3, 5, 3), runs=True)
    assert parts.plan() == ([(2, 0), (0, 0), (0, 1), (1, 0)], [])
    assert parts.plan() == ([], []) and parts.demand.num_rows == 6
    assert [seq.seq_id for seq in parts.demand.find_waiting(picture_hash(1))] == [0, 1]
    missing = [parts.demand.is_missing_any]
    for number in (1, 2, 3):
        parts.demand.mark_ready(picture_hash(number))
    missing.append(parts.demand.is_missing_any)
    assert missing == [True, False] and parts.sequences[0].item_states == [READY, READY]
    assert parts.demand.find_waiting(picture_hash(1)) == []


@pytest.mark.parametrize(("max_chunk", "jobs"), [(8, []), (9, [(0, 0)])])
def test_beyond_the_limit_only_what_the_next_chunk_needs_is_asked_for(max_chunk: int, jobs: list[Any]) -> None:
    parts = Parts(max_rows=1)
    parts.add((8, 12, 1), (20, 22, 2), runs=True)
    assert parts.plan(max_chunk) == (jobs, [])
    assert parts.plan(max_chunk) == ([], [])


def test_the_limit_is_of_rows_that_are_not_used_yet() -> None:
    parts = Parts(max_rows=6)
    first = parts.add((0, 4, 1), (10, 14, 2), runs=True)
    second = parts.add((0, 2, 3), (8, 12, 1), runs=True)
    assert parts.plan(max_chunk=4)[0] == [(0, 0), (1, 0), (1, 1)], "of the second picture, another one is asked for"
    for number in (1, 3):
        parts.demand.mark_ready(picture_hash(number))
    parts.demand.settle_computed(first, 4)
    assert parts.demand.num_rows == 6, "another one needs it"
    assert parts.demand.take_released() == (EmbeddingRef(0, 0, picture_hash(1)),)
    assert parts.demand.take_released() == ()
    parts.drop(second)
    assert parts.demand.num_rows == 0
    assert parts.demand.take_released() == (EmbeddingRef(1, 0, picture_hash(3)), EmbeddingRef(1, 1, picture_hash(1)))
    assert parts.plan(max_chunk=4)[0] == [(0, 1)]


def test_of_those_that_wait_the_first_may_exceed_the_limit() -> None:
    """Unless an earlier one holds something, for which it is served before."""
    parts = Parts(max_rows=1)
    first, second = parts.add((0, 4, 1)), parts.add((0, 4, 2))
    assert parts.plan()[0] == [(0, 0)]
    assert parts.plan()[0] == [], "the second one waits"
    parts.demand.mark_ready(picture_hash(1))
    assert parts.plan()[0] == []
    parts.drop(first)
    assert parts.plan()[0] == [(1, 0)] and second.item_states == [REQUESTED]


def test_one_before_those_that_hold_pictures_may_exceed_the_limit() -> None:
    parts = Parts(max_rows=1)
    parts.add((0, 4, 1))
    parts.plan()
    urgent = parts.add((0, 4, 2))
    parts.demand.drop(urgent)
    urgent.place = -1
    parts.demand.track(urgent)
    assert parts.plan()[0] == [(1, 0)]


def test_what_the_prefix_cache_has_is_not_asked_for() -> None:
    parts = Parts()
    parts.cached = 12
    seq = parts.add((2, 4, 1), (10, 13, 2))
    assert parts.plan() == ([(0, 1)], [0]), "its first chunk has changed"
    assert seq.item_states == [DONE, REQUESTED]
    parts.cached = 0
    assert parts.demand.assume_computed(seq, 0) and seq.item_states == [ABSENT, REQUESTED]
    assert not parts.demand.assume_computed(seq, 0)
    assert parts.plan() == ([(0, 0)], [])


def test_a_text_before_its_picture_may_start() -> None:
    parts = Parts()
    parts.add((12, 14, 1))
    parts.add((2, 4, 2))
    assert parts.plan(max_chunk=8) == ([(0, 0), (1, 0)], [0])


def test_a_sequence_that_ends_needs_nothing_any_more() -> None:
    parts = Parts()
    first, second = parts.add((2, 4, 1), (6, 8, 2)), parts.add((2, 4, 1))
    parts.plan()
    parts.drop(first)
    assert parts.demand.take_released() == (EmbeddingRef(0, 0, picture_hash(1)), EmbeddingRef(0, 1, picture_hash(2)))
    assert parts.demand.find_waiting(picture_hash(2)) == [] and parts.demand.num_rows == 2
    assert parts.demand.find_waiting(picture_hash(1)) == [second]
    parts.drop(second)
    assert not parts.demand.is_missing_any and parts.demand.num_rows == 0


def test_the_first_picture_that_is_missing_is_found() -> None:
    parts = Parts()
    seq = parts.add((2, 4, 1), (6, 8, 2), (10, 12, 3))
    assert parts.demand.find_missing(seq) == picture_hash(1)
    parts.plan()
    assert parts.demand.find_missing(seq) == picture_hash(1), "it is not there yet"
    parts.demand.mark_ready(picture_hash(1))
    parts.demand.mark_ready(picture_hash(2))
    assert parts.demand.find_missing(seq) == picture_hash(3)


def test_a_plan_looks_at_some_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_demand, "_MAX_ASKING", 2)
    parts = Parts()
    for number in range(5):
        parts.add((2, 4, number))
    assert [parts.plan()[0] for _ in range(4)] == [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(4, 0)], []]


def test_a_plan_asks_for_32_that_wait() -> None:
    parts = Parts()
    for number in range(40):
        parts.add((2, 4, number))
    assert [len(parts.plan()[0]) for _ in range(3)] == [32, 8, 0]


def test_the_limit_is_reached_to_the_row() -> None:
    """And items without rows are neither asked for nor given back."""
    parts = Parts(max_rows=5)
    parts.add((0, 2, 1), (4, 6, 2), (8, 9, 3), (12, 13, 4))
    assert parts.plan(max_chunk=1) == ([(0, 0), (0, 1), (0, 2)], []) and parts.demand.num_rows == 5


def test_a_new_demand_is_empty() -> None:
    demand = EmbeddingDemand(1)
    assert demand.num_rows == 0 and not demand.is_missing_any and demand.take_released() == ()


def test_two_places_of_a_picture_are_asked_for_and_given_back_each() -> None:
    """Its rows count once."""
    parts = Parts()
    seq = parts.add((0, 2, 1), (4, 6, 1), runs=True)
    assert parts.plan() == ([(0, 0), (0, 1)], []) and parts.demand.num_rows == 2
    assert parts.demand.find_waiting(picture_hash(1)) == [seq]
    parts.demand.settle_computed(seq, 3)
    parts.demand.mark_ready(picture_hash(1))
    assert seq.item_states == [DONE, READY] and parts.demand.num_rows == 2
    parts.demand.settle_computed(seq, 5)
    assert seq.item_states == [DONE, READY]
    parts.demand.settle_computed(seq, 6)
    assert seq.item_states == [DONE, DONE] and parts.demand.num_rows == 0
    assert [ref.item_index for ref in parts.demand.take_released()] == [0, 1]
