"""Priorities order the waiting sequences of one owner: the lowest is first, and the oldest is never kept waiting."""

from __future__ import annotations

from llm.fake_engine import FakeEngine, make_prompt

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence


def make_engine(*, batch: int = 1, ahead: int = 1000) -> FakeEngine:
    config = SchedulerConfig(
        max_batch_size=batch, max_prefill_token_num=64, session_len=40, max_encode_ahead_tokens=ahead
    )
    return FakeEngine(config, BlockPool(64, 4, False))


def make_sequence(seq_id: int, priority: int = 0, *, owner: str = "a", picture: int = -1) -> Sequence:
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    return Sequence(seq_id, make_prompt([(6, picture)], seq_id), params, owner=owner, priority=priority)


def run(engine: FakeEngine) -> list[int]:
    """The sequences in the order in which they began."""
    begun: dict[int, None] = {}
    while engine.scheduler.has_work:
        num_plans = len(engine.plans)
        while engine.encoding:
            engine.encode(0, fails=False)
        engine.step()
        for plan in engine.plans[num_plans:]:
            begun.update(dict.fromkeys(row.seq_id for row in plan.rows))
    return list(begun)


def test_the_lowest_is_first_and_among_equals_the_oldest() -> None:
    engine = make_engine()
    for seq_id, priority in enumerate((0, 5, -1, 0, -1, 5)):
        engine.add(make_sequence(seq_id, priority))
    assert run(engine) == [2, 4, 0, 3, 1, 5]


def test_an_urgent_one_that_comes_later_passes_those_that_wait() -> None:
    engine = make_engine()
    for seq_id in range(3):
        engine.add(make_sequence(seq_id))
    engine.step()
    engine.add(make_sequence(3, -7))
    assert run(engine) == [0, 3, 1, 2]


def test_the_oldest_is_served_after_eight_others() -> None:
    """Both where all that is urgent waits at once and where it keeps coming, and for one that is less urgent."""
    for late, first in ((-1, 0), (0, 3)):
        engine = make_engine()
        engine.add(make_sequence(0, late))
        engine.step()
        engine.add(make_sequence(1, first))
        for seq_id in range(2, 30):
            engine.add(make_sequence(seq_id, late))
        assert run(engine).index(1) <= 9
        engine = make_engine()
        engine.add(make_sequence(0, late))
        engine.step()
        engine.add(make_sequence(1, first))
        served = 0
        for seq_id in range(2, 30):
            engine.add(make_sequence(seq_id, late))
            while len(engine.alive) > 2:  # one runs, the first one waits
                engine.step()
            served = seq_id
            if 1 not in engine.alive or engine.alive[1].num_generated:
                break
        assert served <= 12
        run(engine)


def test_owners_do_not_gain_over_each_other() -> None:
    """Nobody gets a turn because its sequences are urgent."""
    engine = make_engine()
    engine.add(make_sequence(0, owner="a"))
    for seq_id in range(1, 4):
        engine.add(make_sequence(seq_id, owner="b"))
    for seq_id in range(4, 7):
        engine.add(make_sequence(seq_id, -9, owner="a"))
    assert run(engine) == [1, 2, 3, 4, 5, 6, 0], "of owners with equally many running ones, the older sequence is first"


def test_pictures_are_asked_for_in_the_same_order() -> None:
    engine = make_engine(batch=2, ahead=3)
    for seq_id, priority in enumerate((0, 0, -1)):
        engine.add(make_sequence(seq_id, priority, picture=seq_id))
    engine.step()
    assert next(job.seq_id for plan in engine.plans for job in plan.encode_jobs) == 2
    assert run(engine)[0] == 2
