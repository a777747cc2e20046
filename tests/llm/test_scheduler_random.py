"""The scheduler under random arrivals, aborts, evictions, failures and embeddings that come in any order.

Plans are committed at once, or each after the next one was made.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from llm.fake_engine import EOS, FakeEngine, make_prompt
from pairs import num_examples

from seesay.llm.plans.plan_codec import encode_plan
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.plans.traits import LengthScaling
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots
from seesay.values import MultimodalInput


def extend_prompt(prompt: MultimodalInput, token_id: int) -> MultimodalInput:
    return MultimodalInput(
        token_ids=np.append(prompt.token_ids, token_id),
        positions=np.append(prompt.positions, prompt.next_position),
        next_position=prompt.next_position + 1,
        items=prompt.items,
        num_answer_tokens=prompt.num_answer_tokens + 1,
    )


pieces = st.lists(st.tuples(st.integers(1, 8), st.integers(-1, 4)), min_size=1, max_size=4)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, 24),
        num_host_slots=st.sampled_from([0, 0, 1, 4, 16, 64]),
        block_size=st.integers(1, 5),
        caching=st.booleans(),
        batch=st.integers(1, 5),
        budget=st.integers(1, 14),
        streamed=st.one_of(st.none(), st.integers(1, 14)),
        ahead=st.integers(1, 30),
        is_ahead=st.booleans(),
        length_scaling=st.one_of(
            st.none(),
            st.builds(
                LengthScaling,
                kind=st.sampled_from(["switch", "dynamic", "doubling"]),
                trained=st.integers(1, 30),
                factor=st.just(2.0),
            ),
        ),
        media_run=st.sampled_from([0, 0, 5]),
        attends_media=st.sampled_from([False, False, True]),
        jump=st.sampled_from([0, 0, 1, 6]),
        is_prefix_lm=st.sampled_from([False, False, True]),
        draft=st.sampled_from([0, 0, 1, 4]),
        num_states=st.sampled_from([0, 0, 1, 2, 5, 12]),
        spacing=st.integers(1, 4),
        num_adapter_slots=st.sampled_from([0, 1, 2, 3]),
    )
    def start(
        self,
        num_blocks: int,
        num_host_slots: int,
        block_size: int,
        caching: bool,
        batch: int,
        budget: int,
        streamed: int | None,
        ahead: int,
        is_ahead: bool,
        length_scaling: LengthScaling | None,
        media_run: int,
        attends_media: bool,
        jump: int,
        is_prefix_lm: bool,
        draft: int,
        num_states: int,
        spacing: int,
        num_adapter_slots: int,
    ) -> None:
        config = SchedulerConfig(
            max_batch_size=batch,
            max_prefill_token_num=budget + 10 * is_prefix_lm,  # longer prompts are refused then
            max_streamed_tokens=streamed,
            session_len=40,
            max_encode_ahead_tokens=ahead,
            length_scaling=length_scaling,
            media_run=media_run,
            attends_media=attends_media and not (media_run or is_prefix_lm),
            is_prefix_lm=is_prefix_lm,
            num_adapter_slots=num_adapter_slots,
        )
        pool = BlockPool(num_blocks, block_size, caching, num_host_slots)
        states = None
        if num_states:
            places = SnapshotPlaces(block_size, spacing * block_size)
            num_host_states = -(-num_host_slots // spacing)
            states = StateSlots(num_states, places, enable_prefix_caching=caching, num_host_slots=num_host_states)
        self.engine = FakeEngine(config, pool, is_ahead=is_ahead, jump=jump, draft=draft, states=states)
        self.num_added = 0
        self.last: dict[int, tuple[MultimodalInput, str, bytes]] = {}  # by group, what its last member came with

    @rule(
        pieces=pieces,
        seed=st.integers(0, 2),
        max_new_tokens=st.integers(0, 8),
        ignore_eos=st.booleans(),
        whole=st.sampled_from([False, False, False, True]),
        salt=st.sampled_from([b"", b"", b"tenant"]),
        owner=st.sampled_from(["a", "a", "a", "b", "c"]),
        priority=st.sampled_from([0, 0, 0, -2, 5]),
        waits=st.sampled_from([False, False, False, True]),
        adapter_id=st.sampled_from([0, 0, 1, 2, 3, 4]),
    )
    def come(
        self,
        pieces: list[tuple[int, int]],
        seed: int,
        max_new_tokens: int,
        ignore_eos: bool,
        whole: bool,
        salt: bytes,
        owner: str,
        priority: int,
        waits: bool,
        adapter_id: int,
    ) -> None:
        params = SamplingParams(
            eos_token_ids=(EOS,),
            max_new_tokens=max_new_tokens,
            ignore_eos=ignore_eos,
            prompt_logprobs=0 if whole else None,
        )
        prompt = make_prompt(pieces, seed)
        self.engine.add(
            Sequence(
                self.num_added,
                prompt,
                params,
                owner=owner,
                priority=priority,
                cache_salt=salt,
                is_streamed=seed > 0,
                waits_for_tokens=waits,
                adapter_id=adapter_id if self.engine.scheduler.config.num_adapter_slots else 0,
            )
        )
        self.num_added += 1

    @rule(
        pieces=pieces,
        seed=st.integers(0, 2),
        count=st.integers(2, 5),
        max_new_tokens=st.integers(1, 8),
        stays=st.booleans(),
        salt=st.sampled_from([b"", b"tenant"]),
        owner=st.sampled_from(["a", "a", "b"]),
    )
    def come_together(
        self,
        pieces: list[tuple[int, int]],
        seed: int,
        count: int,
        max_new_tokens: int,
        stays: bool,
        salt: bytes,
        owner: str,
    ) -> None:
        """Several answers to one prompt."""
        group_id = self.num_added
        self.last[group_id] = make_prompt(pieces, seed), owner, salt
        for _ in range(count):
            self.come_to_group(group_id, self.last[group_id], max_new_tokens=max_new_tokens, stays=stays)
        if not stays:
            del self.last[group_id]

    def come_to_group(
        self, group_id: int, what: tuple[MultimodalInput, str, bytes], *, max_new_tokens: int, stays: bool
    ) -> None:
        prompt, owner, salt = what
        params = SamplingParams(eos_token_ids=(EOS,), max_new_tokens=max_new_tokens, ignore_eos=stays)
        seq = Sequence(
            self.num_added, prompt, params, owner=owner, cache_salt=salt, group_id=group_id, keeps_blocks=stays
        )
        self.engine.add(seq)
        self.num_added += 1

    @precondition(lambda self: self.last)
    @rule(data=st.data(), tokens=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def continue_group(self, data: st.DataObject, tokens: list[int]) -> None:
        """The prompt of a group goes on with each of some tokens."""
        group_id = data.draw(st.sampled_from(sorted(self.last)))
        before, owner, salt = self.last[group_id]
        for token_id in tokens:
            longer = extend_prompt(before, token_id)
            self.come_to_group(group_id, (longer, owner, salt), max_new_tokens=1, stays=True)
        self.last[group_id] = longer, owner, salt

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def end_group(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.last)))
        del self.last[group_id]
        self.engine.scheduler.end_group(group_id)

    @rule()
    def forget_prefixes(self) -> None:
        self.engine.scheduler.forget_prefixes()

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()

    @rule(with_the_one_before=st.booleans(), spoils=st.booleans(), half=st.integers(0, 2))
    def lose_a_step(self, with_the_one_before: bool, spoils: bool, half: int) -> None:
        """Then some of its rows may be tried without the others."""
        plan = self.engine.lose(with_the_one_before=with_the_one_before, spoils=spoils)
        if half:
            self.engine.step(only={row.seq_id for row in plan.rows[half - 1 :: 2]})

    @precondition(lambda self: self.engine.encoding)
    @rule(index=st.integers(0, 9), fails=st.sampled_from([False, False, False, True]))
    def encode(self, index: int, fails: bool) -> None:
        self.engine.encode(index, fails=fails)

    @precondition(lambda self: self.engine.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.end(data.draw(st.sampled_from(sorted(self.engine.alive))))

    @rule(index=st.integers(0, 4))
    def abort_during_a_step(self, index: int) -> None:
        def between(plan: StepPlan) -> None:
            if plan.rows:
                self.engine.end(plan.rows[index % len(plan.rows)].seq_id)

        self.engine.step(between)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            for group_id in self.last:
                self.engine.scheduler.end_group(group_id)
            self.engine.drain()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=num_examples(60), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def serve_at_random(
    seed: int,
    *,
    share_lost: float = 0.0,
    num_blocks: int | None = None,
    num_host_slots: int = 0,
    is_ahead: bool = False,
    is_prefix_lm: bool = False,
    jump: int = 0,
    draft: int = 0,
) -> FakeEngine:
    """A long run of one random load."""
    rng = random.Random(seed)
    config = SchedulerConfig(
        max_batch_size=6,
        max_prefill_token_num=16,
        session_len=40,
        max_encode_ahead_tokens=20,
        is_prefix_lm=is_prefix_lm,
    )
    drawn = rng.randint(12, 40)
    pool = BlockPool(num_blocks or drawn, 3, True, num_host_slots)
    engine = FakeEngine(config, pool, is_ahead=is_ahead, jump=jump, draft=draft)
    for seq_id in range(150):
        picked = [(rng.randint(1, 6), rng.randint(-1, 4)) for _ in range(rng.randint(1, 3))]
        params = SamplingParams(eos_token_ids=(EOS,), max_new_tokens=rng.randint(1, 12))
        engine.add(Sequence(seq_id, make_prompt(picked, rng.randint(0, 3)), params))
        while rng.random() < 0.7:
            if share_lost and rng.random() < share_lost:
                engine.lose(with_the_one_before=rng.random() < 0.5, spoils=rng.random() < 0.7)
            engine.step()
            if engine.encoding and rng.random() < 0.5:
                engine.encode(rng.randint(0, 9), fails=rng.random() < 0.1)
    engine.drain()
    return engine


def test_the_same_load_gives_the_same_plans() -> None:
    for seed in range(3):
        first, second = (serve_at_random(seed).plans for _ in range(2))
        assert list(map(encode_plan, first)) == list(map(encode_plan, second))


@pytest.mark.parametrize("is_ahead", (False, True))
def test_what_the_host_keeps_is_not_computed_again(is_ahead: bool) -> None:
    num_loads, num_tokens = [], []
    for num_host_slots in (0, 20, 1000):
        engines = [serve_at_random(seed, num_host_slots=num_host_slots, is_ahead=is_ahead) for seed in range(4)]
        num_loads.append(sum(engine.scheduler.stats().total_host_kv_loads for engine in engines))
        num_tokens.append(sum(plan.num_tokens for engine in engines for plan in engine.plans))
    assert 0 == num_loads[0] < num_loads[1] < num_loads[2], num_loads
    assert num_tokens[0] > num_tokens[2], num_tokens


@pytest.mark.parametrize("is_ahead", (False, True))
def test_tokens_that_are_jumped_over_take_no_steps(is_ahead: bool) -> None:
    """And change no answer, which the engine checks."""
    plain, jumping = ([serve_at_random(seed, is_ahead=is_ahead, jump=jump) for seed in range(3)] for jump in (0, 5))
    rows = [sum(len(plan.rows) for engine in engines for plan in engine.plans) for engines in (plain, jumping)]
    num_jumped = [engine.scheduler.stats().total_jumped_tokens for engine in jumping]
    assert all(num_jumped) and rows[1] < rows[0] - sum(num_jumped) // 3
    assert not any(engine.scheduler.stats().total_jumped_tokens for engine in plain)


@pytest.mark.parametrize("is_ahead", (False, True))
def test_accepted_drafts_save_steps(is_ahead: bool) -> None:
    """And change no answer, which the engine checks; what was computed of wrong ones is read by nobody."""
    plain, drafting = ([serve_at_random(seed, is_ahead=is_ahead, draft=draft) for seed in range(3)] for draft in (0, 4))
    rows = [sum(len(plan.rows) for engine in engines for plan in engine.plans) for engines in (plain, drafting)]
    stats = [engine.scheduler.stats() for engine in drafting]
    assert all(0 < each.total_accepted_tokens < each.total_draft_tokens for each in stats)
    assert rows[1] < rows[0] - sum(each.total_accepted_tokens for each in stats) // 3
    assert not any(engine.scheduler.stats().total_draft_tokens for engine in plain)


@pytest.mark.parametrize("num_host_slots", (0, 20))
def test_prompts_that_begin_alike_share_no_block_where_their_tokens_see_all(num_host_slots: int) -> None:
    """The engine finds a block that is read with other contents. Equal prompts share theirs, and preempted ones."""
    stats = [
        serve_at_random(
            seed, num_blocks=num_blocks, num_host_slots=num_host_slots, is_ahead=seed % 2 == 1, is_prefix_lm=True
        ).scheduler.stats()
        for seed, num_blocks in enumerate((11, 11, 40, 40))
    ]
    assert sum(each.total_prefix_hit_tokens for each in stats) > 0
    assert sum(each.total_preemptions for each in stats) > 0


@pytest.mark.parametrize("is_ahead", (False, True))
def test_lost_steps_change_no_answer(is_ahead: bool) -> None:
    """Nothing is found that they were to load, save or copy. The engine checks what is read."""
    for seed, num_host_slots in enumerate((0, 8, 20, 40)):
        engine = serve_at_random(
            seed, num_blocks=14, num_host_slots=num_host_slots, is_ahead=is_ahead, jump=seed, draft=seed, share_lost=0.3
        )
        assert sum(plan.is_fresh for plan in engine.plans) > 20
        assert not num_host_slots or engine.scheduler.stats().total_host_kv_loads > 0


def test_a_crowd_on_a_tiny_pool_all_get_their_answers() -> None:
    """Everybody at once, room for hardly more than one: constant preemption, and still an end."""
    config = SchedulerConfig(max_batch_size=8, max_prefill_token_num=5, session_len=40, max_encode_ahead_tokens=2)
    engine = FakeEngine(config, BlockPool(10, 3))
    for seq_id in range(30):
        prompt = make_prompt([(3 + seq_id % 5, seq_id % 4), (2, -1)], seed=seq_id)
        engine.add(Sequence(seq_id, prompt, SamplingParams(max_new_tokens=9)))
    engine.drain()
    assert engine.scheduler.stats().total_preemptions > 0
    assert engine.num_steps < 2000
