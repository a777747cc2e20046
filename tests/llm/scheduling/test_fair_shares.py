"""Owners take turns: places, blocks and prompt tokens are divided equally, nobody starves, and one owner alone is
served first come, first served."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm.fake_engine import FakeEngine, make_prompt
from pairs import num_examples

from seesay.llm.plans.plan_codec import encode_plan
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.arrival_queue import ArrivalQueue
from seesay.llm.scheduling.fair_shares import TokenShares, divide_tokens, find_yielding, order_victims
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import NO_LIMIT, Sequence, SequenceStatus


def make_engine(
    *, batch: int = 8, budget: int = 16, num_blocks: int = 200, is_ahead: bool = False, session_len: int = 40
) -> FakeEngine:
    """Nothing is cached: every prompt token is computed."""
    config = SchedulerConfig(max_batch_size=batch, max_prefill_token_num=budget, session_len=session_len)
    return FakeEngine(config, BlockPool(num_blocks, 4, False), is_ahead=is_ahead)


def make_sequence(seq_id: int, owner: str, *, prompt: int = 6, answer: int = 20, seed: int | None = None) -> Sequence:
    params = SamplingParams(max_new_tokens=answer, ignore_eos=True)
    text = make_prompt([(prompt, -1)], seq_id if seed is None else seed)
    return Sequence(seq_id, text, params, owner=owner, is_streamed=True)


def steps_to_first_token(engine: FakeEngine, seq: Sequence) -> int:
    engine.add(seq)
    for num_steps in range(1, 1000):
        engine.step()
        if seq.num_generated:
            return num_steps
    raise AssertionError("no first token")


# --- the parts -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.dictionaries(st.integers(0, 9), st.integers(1, 200), min_size=1))
def test_tokens_are_divided_equally(total: int, wanted: dict[Hashable, int]) -> None:
    shares = divide_tokens(total, wanted)
    assert shares.keys() == wanted.keys()
    assert all(1 <= shares[owner] <= wanted[owner] for owner in wanted)
    if total >= len(wanted):
        assert sum(shares.values()) == min(total, sum(wanted.values())), "tokens are left over, or given twice"
        for owner in wanted:
            if shares[owner] < wanted[owner]:
                assert shares[owner] >= max(shares.values()) - 1, "somebody has more, though this one wants more"


# --- one heavy and one light client ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize(
    ("batch", "num_blocks", "prompt"),
    [(8, 400, 6), (32, 400, 6), (8, 60, 6), (8, 400, 30)],
    ids=["places", "many places", "blocks", "long prompts"],
)
def test_a_light_client_waits_at_most_three_times_as_long(
    batch: int, num_blocks: int, prompt: int, is_ahead: bool
) -> None:
    """Four requests of 128 answers are there, and run; then somebody else asks one small question after another."""
    alone = steps_to_first_token(
        make_engine(batch=batch, budget=2 * batch, is_ahead=is_ahead), make_sequence(0, "light")
    )
    engine = make_engine(batch=batch, budget=2 * batch, num_blocks=num_blocks, is_ahead=is_ahead, session_len=200)
    for seq_id in range(512):
        engine.add(make_sequence(seq_id, "heavy", prompt=prompt, answer=60, seed=seq_id % 4))
    for _ in range(25):
        engine.step()
    for number in range(12):
        light = make_sequence(1000 + number, "light", answer=3)
        assert steps_to_first_token(engine, light) <= 3 * alone, f"question {number}"
        for _ in range(number):
            engine.step()
    assert any(seq.owner == "heavy" for seq in engine.alive.values()), "the heavy client had too little to do"
    assert engine.scheduler._live.waiting.num_running["heavy"] >= min(batch, num_blocks // 20) - 2


def test_without_owners_it_waits_for_all_the_others() -> None:
    """The same load of one owner: what the test above would see if turns did nothing."""
    engine = make_engine()
    for seq_id in range(64):
        engine.add(make_sequence(seq_id, "same"))
    assert steps_to_first_token(engine, make_sequence(1000, "same")) > 100


# --- everybody gets as much ------------------------------------------------------------------------------------------


def test_places_are_divided_equally() -> None:
    engine = make_engine(batch=9, budget=64)
    for seq_id in range(300):
        engine.add(make_sequence(seq_id, "abc"[seq_id >= 100] if seq_id < 200 else "c", answer=10 + seq_id % 7))
    for step in range(60):
        engine.step()
        running = engine.scheduler._live.waiting.num_running
        if step > 10 and running.total() == 9:
            assert max(running.values()) - min(running[owner] for owner in "abc") <= 1, running
    finished = Counter({owner: 100 - sum(seq.owner == owner for seq in engine.alive.values()) for owner in "abc"})
    assert max(finished.values()) - min(finished.values()) <= 4, finished


def test_prompt_tokens_of_a_step_are_divided_equally() -> None:
    """Long prompts of one owner do not keep another's short ones waiting."""
    engine = make_engine(batch=16, budget=20, num_blocks=500, session_len=400)
    for seq_id in range(4):
        engine.add(make_sequence(seq_id, "long", prompt=300, answer=2))
    engine.step()
    tokens: Counter[str] = Counter()
    for number in range(20):
        engine.add(make_sequence(100 + number, "short", prompt=10, answer=1))
        before = len(engine.plans)
        engine.step()
        for row in engine.plans[before].rows:
            if row.num_tokens > 1:
                tokens["short" if row.seq_id >= 100 else "long"] += row.num_tokens
    assert tokens["short"] == 200 and tokens["long"] == 200, tokens


def test_blocks_are_divided_equally() -> None:
    """A pool that one owner has filled makes room for as much of another's, and no more."""
    engine = make_engine(batch=64, budget=64, num_blocks=60, session_len=100)
    for seq_id in range(100):
        engine.add(make_sequence(seq_id, "first", prompt=8, answer=80))
    for _ in range(30):
        engine.step()
    for seq_id in range(100, 200):
        engine.add(make_sequence(seq_id, "second", prompt=8, answer=80))
    for _ in range(30):
        engine.step()
    running = engine.scheduler._live.waiting.num_running
    assert running["second"] >= 1 and abs(running["first"] - running["second"]) <= 2, running


@settings(max_examples=num_examples(40), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 6),
    budget=st.integers(1, 20),
    num_blocks=st.integers(11, 60),
    is_ahead=st.booleans(),
)
def test_nobody_starves(seed: int, batch: int, budget: int, num_blocks: int, is_ahead: bool) -> None:
    """However many owners come after it, a sequence ends; and the more owners there are, the later at most."""
    rng = random.Random(seed)
    engine = make_engine(batch=batch, budget=budget, num_blocks=num_blocks, is_ahead=is_ahead)
    first = make_sequence(0, "first", prompt=rng.randint(1, 20), answer=rng.randint(1, 15))
    engine.add(first)
    for seq_id in range(1, 4):
        engine.add(make_sequence(seq_id, "first", prompt=rng.randint(1, 20), answer=rng.randint(1, 15)))
    num_added = 4
    for _ in range(4000):
        if all(engine.scheduler.sequences.get(seq_id) is None for seq_id in range(4)):
            break
        if len(engine.alive) < 12:  # there are always others, each with an owner of its own
            engine.add(make_sequence(num_added, f"owner {num_added}", prompt=rng.randint(1, 20), answer=5))
            num_added += 1
        engine.step()
    assert first.status is SequenceStatus.FINISHED
    assert all(engine.scheduler.sequences.get(seq_id) is None for seq_id in range(4)), "newcomers pass for ever"
    engine.drain()


@pytest.mark.parametrize("is_ahead", [False, True])
def test_one_owner_is_served_as_before(is_ahead: bool) -> None:
    """First come, first served: whatever the owner is called, the plans are the same."""

    def serve(owners: list[str]) -> list[bytes]:
        rng = random.Random(5)
        engine = make_engine(batch=5, budget=12, num_blocks=30, is_ahead=is_ahead)
        firsts: list[int] = []
        for seq_id in range(60):
            owner = owners[seq_id % len(owners)]
            engine.add(make_sequence(seq_id, owner, prompt=rng.randint(1, 15), answer=rng.randint(1, 20)))
            if rng.random() < 0.5:
                engine.step()
        engine.drain()
        for plan in engine.plans:
            firsts += [row.seq_id for row in plan.rows if row.start == 0 and row.seq_id not in firsts]
        assert len(owners) > 1 or firsts == sorted(firsts), "somebody passed"
        return list(map(encode_plan, engine.plans))

    assert serve(["a"]) == serve(["b"]) != serve(["a", "b"])


def test_the_youngest_of_the_owner_with_the_most_makes_room() -> None:
    """As long as that one still has as many as the other then."""
    running = ArrivalQueue()
    sequences = [make_sequence(number, owner) for number, owner in enumerate("aaab")]
    for arrival, seq in enumerate(sequences):
        seq.arrival = arrival
        running.add(seq)
    counts = Counter[Hashable]({"a": 3, "b": 1})
    assert find_yielding(running, counts, "b") is sequences[2] and find_yielding(running, counts, "c") is sequences[2]
    assert find_yielding(running, counts, "a") is None
    assert (
        find_yielding(running, Counter[Hashable]({"a": 2, "b": 1}), "b") is None
        and find_yielding(running, Counter[Hashable](), "b") is None
    )
    assert [seq.seq_id for seq in order_victims(running, counts, sequences[3])] == [2, 1, 0]
    assert [seq.seq_id for seq in order_victims(running, counts, sequences[1])] == [2]


def test_shares_are_spent_and_opened() -> None:
    shares = TokenShares({"a": 5, "b": 2})
    assert (shares.left("a"), shares.left("b"), shares.left("c")) == (5, 2, 5)
    assert shares.spend("a", 3) == 3 and shares.spend("c", 1) == 1
    assert (shares.left("a"), shares.left("c"), shares.left("d")) == (2, 4, 5)
    shares.open()
    assert shares.left("a") == shares.left("d") == TokenShares().left("a") == NO_LIMIT
