"""Sequences of more adapters than there are slots: who waits for whom."""

from __future__ import annotations

import pytest
from llm.fake_engine import FakeEngine, make_prompt

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus


def make_engine(num_slots: int, *, max_batch_size: int = 8, **options: object) -> FakeEngine:
    config = SchedulerConfig(
        max_batch_size=max_batch_size, max_prefill_token_num=64, session_len=80, num_adapter_slots=num_slots
    )
    return FakeEngine(config, BlockPool(200, 4), **options)  # type: ignore[arg-type]


class Requests:
    """Adds sequences to an engine, by the name of their adapter."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.sequences: list[Sequence] = []

    def add(self, adapters: str, *, num_tokens: int = 8, picture: int = -1) -> None:
        for adapter in adapters:
            seq_id = len(self.sequences)
            params = SamplingParams(max_new_tokens=num_tokens, ignore_eos=True)
            prompt = make_prompt([(6, picture)], seq_id)
            adapter_id = 0 if adapter == "-" else ord(adapter)
            self.sequences.append(Sequence(seq_id, prompt, params, adapter_id=adapter_id))
            self.engine.add(self.sequences[-1])

    @property
    def running(self) -> str:
        running = [seq for seq in self.sequences if seq.status is SequenceStatus.RUNNING]
        return "".join(chr(seq.adapter_id or ord("-")) for seq in running)

    def step(self) -> str:
        self.engine.step()
        return self.running


def test_those_without_a_slot_let_others_pass() -> None:
    requests = Requests(make_engine(2))
    requests.add("ab-c-ab-")
    requests.step()  # some wait for a prefix that another one computes
    assert requests.step() == "ab--b-", "the second a came later than c, for which the slot of a is freed"
    requests.add("-ab")
    requests.step()
    assert requests.step() == "ab--b--b"


def test_a_slot_becomes_free_for_those_that_wait() -> None:
    """However many sequences come for the adapters that have slots: what waits takes its turn."""
    requests = Requests(make_engine(1))
    requests.add("aab")
    begun = []
    for _ in range(60):
        requests.add("a")
        running = requests.step()
        assert len(set(running)) <= 1
        begun.append(running[:1])
        if running == "b":
            break
    assert "b" in begun and begun.index("b") <= 12


def test_those_that_came_before_the_one_that_waits_share_its_round() -> None:
    requests = Requests(make_engine(1, max_batch_size=3))
    requests.add("aaaab", num_tokens=6)
    seen = {requests.step() for _ in range(25)}
    assert "aaa" in seen and "a" in seen and "b" in seen and all(len(set(each)) <= 1 for each in seen)


def test_an_adapter_stays_while_nobody_needs_its_slot() -> None:
    engine = make_engine(2)
    requests = Requests(engine)
    for adapters in ("a", "b", "a", "c", "b"):  # c takes the slot of b, which has been idle longest
        requests.add(adapters)
        engine.drain()
    loads = [chr(load.adapter_id) for plan in engine.plans for load in plan.adapter_loads]
    assert "".join(loads) == "abcb"


def test_one_that_waits_for_a_picture_holds_no_slot() -> None:
    engine = make_engine(1)
    requests = Requests(engine)
    requests.add("a", picture=3)
    assert requests.step() == ""
    requests.add("b")
    assert requests.step() == "b"


@pytest.mark.parametrize("is_ahead", [False, True])
def test_plans_that_are_lost_load_again(is_ahead: bool) -> None:
    engine = make_engine(2, is_ahead=is_ahead)
    requests = Requests(engine)
    requests.add("ab")
    plan = engine.scheduler.plan_step()
    assert len(plan.adapter_loads) == 2
    engine.scheduler.abandon([plan])
    engine.drain()


def test_those_that_end_while_they_wait_are_forgotten() -> None:
    engine = make_engine(1)
    requests = Requests(engine)
    requests.add("abc", num_tokens=20)
    requests.step()
    engine.end(1)
    engine.end(2)
    requests.add("a")
    assert requests.step() == "aa", "nobody waits any more"


def test_a_slot_is_freed_when_its_adapter_is_unloaded() -> None:
    engine = make_engine(1)
    requests = Requests(engine)
    requests.add("a")
    engine.drain()
    engine.scheduler.forget_adapter(ord("a"))
    requests.add("a")
    engine.drain()
    assert sum(len(plan.adapter_loads) for plan in engine.plans) == 2
