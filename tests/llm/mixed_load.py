"""A load of all kinds of requests at once, for an engine that checks what each row reads."""

from __future__ import annotations

import random

from llm.fake_engine import EOS, FakeEngine, make_prompt

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.plans.traits import LengthScaling
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots


def make_mixed_engine(
    *,
    num_blocks: int = 14,
    num_host_slots: int = 0,
    caching: bool = True,
    is_ahead: bool = False,
    draft: int = 0,
    jump: int = 0,
    num_states: int = 0,
    stretch_kind: str = "",
    attends_media: bool = False,
    media_run: int = 0,
    is_prefix_lm: bool = False,
    budget: int = 14,
    ahead: int = 12,
) -> FakeEngine:
    """An engine with little room for everything."""
    scaling = LengthScaling(kind=stretch_kind, trained=15, factor=2.0) if stretch_kind else None  # type: ignore[arg-type]
    config = SchedulerConfig(
        max_batch_size=5,
        max_prefill_token_num=budget,
        max_streamed_tokens=budget // 2,
        session_len=40,
        max_encode_ahead_tokens=ahead,
        length_scaling=scaling,
        num_adapter_slots=2,
        attends_media=attends_media,
        media_run=media_run,
        is_prefix_lm=is_prefix_lm,
    )
    states = None
    if num_states:
        states = StateSlots(
            num_states, SnapshotPlaces(3, 6), enable_prefix_caching=caching, num_host_slots=num_host_slots // 2
        )
    pool = BlockPool(num_blocks, 3, caching, num_host_slots)
    return FakeEngine(config, pool, is_ahead=is_ahead, draft=draft, jump=jump, states=states)


class MixedLoad:
    """Requests of several owners, priorities, adapters, salts and groups, drawn by a seed. Some are aborted; pictures
    come late or never; steps are lost, and the prefix cache is emptied."""

    def __init__(self, engine: FakeEngine, seed: int) -> None:
        self.engine = engine
        self._rng = random.Random(seed)
        self._num_added = 0

    def serve(self, num_requests: int) -> None:
        """Serve so many requests, and drain the engine."""
        while self._num_added < num_requests:
            self._come()
            while self._rng.random() < 0.62:
                self._go_on()
                self.engine.scheduler.check_integrity()
        self.engine.drain()

    def _come(self) -> None:
        rng = self._rng
        prompt = make_prompt(
            [(rng.randint(1, 8), rng.randint(-1, 3)) for _ in range(rng.randint(1, 3))], rng.randint(0, 1)
        )
        owner, salt, adapter_id = rng.choice("aaab"), rng.choice([b"", b"", b"x"]), rng.choice([0, 0, 1, 2, 3])
        count = rng.choice([1, 1, 1, 3])
        group_id = self._num_added if count > 1 else None
        for _ in range(count):
            params = SamplingParams(
                eos_token_ids=(EOS,),
                max_new_tokens=rng.choice([0, 1, 4, 9, 14]) if count == 1 else 6,
                ignore_eos=rng.random() < 0.5,
                prompt_logprobs=0 if rng.random() < 0.1 else None,
            )
            seq = Sequence(
                self._num_added,
                prompt,
                params,
                owner=owner,
                priority=rng.choice([0, 0, -2, 5]),
                cache_salt=salt,
                adapter_id=adapter_id,
                is_streamed=rng.random() < 0.5,
                waits_for_tokens=rng.random() < 0.2,
                group_id=group_id,
            )
            self.engine.add(seq)
            self._num_added += 1

    def _go_on(self) -> None:
        rng, engine = self._rng, self.engine
        match rng.randrange(24):
            case 0:
                plan = engine.lose(with_the_one_before=rng.random() < 0.5, spoils=rng.random() < 0.7)
                engine.step(only={row.seq_id for row in plan.rows[::2]})
            case 1:
                engine.scheduler.forget_prefixes()
            case 2 if engine.alive:
                engine.end(rng.choice(sorted(engine.alive)))
            case 3:
                engine.step(self._end_first)
            case _:
                engine.step()
        if engine.encoding and rng.random() < 0.6:
            engine.encode(rng.randint(0, 9), fails=rng.random() < 0.1)

    def _end_first(self, plan: StepPlan) -> None:
        if plan.rows:
            self.engine.end(plan.rows[0].seq_id)
