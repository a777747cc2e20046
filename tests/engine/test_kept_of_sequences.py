"""Families whose layers keep a state of each sequence, or a latent row of each token, against Transformers in float32:
cut at every end of a block and beside it, resumed behind every block, preempted, left, waiting, and kept apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from adapter_folders import write_adapter
from asking import Expected, ask, ask_in_order, loop_of, make_conversations, parse, run_transformers
from enrolment import WITH_LATENT_ROWS, WITH_STATES, is_variant
from waiting import wait_until

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.llm.plans.step_plan import Row
from seesay.llm.scheduling.state_slots import SnapshotPlaces
from seesay.llm.scheduling.step_policy import StepLoad
from seesay.values import GenerationRequest, OutputDelta

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
BLOCK, FEW_TOKENS, NUM_TOKENS, MANY_TOKENS = 4, 3, 6, 24
BATCH = 64
FAR = 1 << 20
QUICK = ("qwen3_5_text", "granite4", "jamba", "falcon_h1", "nemotron_h", "lfm2", "qwen3_5", "deepseek_v2")
"""A delta net, Mamba-2, Mamba, a state beside attention, layers that keep nothing, a convolution, pictures beside
states, and latent rows."""
ADAPTED = r"(?!.*(visual|vision|expert)).*\.(o_proj|out_proj)"
NAMES = tuple(name for name in dict.fromkeys((*WITH_STATES, *WITH_LATENT_ROWS)) if not is_variant(name))


class Cuts:
    """A `StepPolicy` that limits the first step of a prompt to `first` tokens, and no other."""

    first: int | None = None

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        if self.first is None or next(iter(load.prompts), None) is None:
            return None
        limit, self.first = self.first, None
        return limit

    def observe(self, rows: Sequence[Row], seconds: float) -> None:
        pass


@dataclass
class Kept:
    """A family's tiny checkpoint, and what Transformers makes of its prompts."""

    name: str
    path: Path
    expected: list[Expected]

    def make_requests(self, num_tokens: int = NUM_TOKENS) -> list[GenerationRequest]:
        options = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "output_logits": "generation"}
        return parse(make_conversations(self.name), **options)

    def check(self, output: Response, index: int, **where: Any) -> None:
        """Compare with Transformers' tokens, and with its logits of the first one."""
        assert output.error is None, (where, output.error)
        expected = self.expected[index]
        assert list(output.token_ids) == expected.answer[: len(output.token_ids)] != [], where
        assert (output.logits[0] - expected.logits[-1]).abs().max() < 4e-3, where

    def check_all(self, outputs: Sequence[Response]) -> None:
        for index, output in enumerate(outputs):
            self.check(output, index)


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def kept(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]) -> Kept:
    path = tiny_checkpoint(request.param)
    return Kept(request.param, path, run_transformers(path, request.param, new_tokens=MANY_TOKENS))


@contextmanager
def build(kept: Kept, **options: Any) -> Iterator[AsyncEngine]:
    """An engine that keeps states behind every block."""
    config = EngineConfig(**{"device_type": "cpu", "block_size": BLOCK, "max_batch_size": BATCH, **options})
    with AsyncEngine(str(kept.path), backend_config=config) as engine:
        states = loop_of(engine)._scheduler._live.states
        assert (states is not None) == (kept.name in WITH_STATES)
        if states is not None:
            states.places = SnapshotPlaces(BLOCK, BLOCK)
        yield engine


@pytest.fixture(scope="module")
def caching(kept: Kept) -> Iterator[AsyncEngine]:
    with build(kept) as engine:
        yield engine


def ask_one(engine: AsyncEngine, request: GenerationRequest) -> Response:
    [output] = ask(engine, [request])
    return output


def cached_of(output: Response) -> int:
    assert output.usage is not None
    return output.usage.cached_tokens


def test_cut_at_every_block_and_beside_it(kept: Kept) -> None:
    """The first step ends there, and nothing is found in a cache. The other conversation has a picture, if any has."""
    with build(kept, enable_prefix_caching=False) as engine:
        scheduler, cuts = loop_of(engine)._scheduler, Cuts()
        scheduler._planner._budget._policy = cuts
        states = scheduler._live.states
        if states is not None:
            states.places = SnapshotPlaces(BLOCK, FAR)
        requests = kept.make_requests(FEW_TOKENS)
        for index in (0, min(3, len(requests) - 1)):
            length = len(kept.expected[index].input_ids)
            for first in sorted({b + d for b in range(0, length + 1, BLOCK) for d in (-1, 0, 1)} & {*range(1, length)}):
                cuts.first = first
                kept.check(ask_one(engine, requests[index]), index, cut=first)
                assert cuts.first is None


def test_batched_and_resumed_behind_every_block(kept: Kept, caching: AsyncEngine) -> None:
    scheduler = loop_of(caching)._scheduler
    pool, states = scheduler._pool, scheduler._live.states
    requests = kept.make_requests(FEW_TOKENS)
    caching.reset_caches()
    kept.check_all(ask(caching, requests))
    for index in (0, len(requests) - 1):
        kept.check(ask_one(caching, requests[index]), index)
        keys: list[Any] = []
        plan = scheduler.plan_step

        def watch(*args: Any, plan: Any = plan, keys: list[Any] = keys) -> Any:
            for seq in scheduler.sequences.values():
                keys[:] = seq.block_keys
            return plan(*args)

        scheduler.plan_step = watch  # type: ignore[method-assign,assignment]
        kept.check(ask_one(caching, requests[index]), index)
        scheduler.plan_step = plan  # type: ignore[method-assign]
        most = (len(kept.expected[index].input_ids) - 1) // BLOCK
        assert len(keys) >= most > 1
        for count in range(most, -1, -1):
            pool.forget(pool.find(keys[: len(keys)])[count:])
            if states is not None:
                states.forget(keys[count:])
            output = ask_one(caching, requests[index])
            kept.check(output, index, resumed=count)
            assert cached_of(output) == count * BLOCK


@pytest.mark.parametrize("is_ahead", [False, True])
def test_preempted(kept: Kept, is_ahead: bool) -> None:
    longest = max(len(expected.input_ids) + MANY_TOKENS for expected in kept.expected)
    options = {"num_gpu_blocks": -(-longest // BLOCK) + 1, "async_scheduling": is_ahead, "max_prefill_token_num": 7}
    with build(kept, **options) as engine:
        kept.check_all(ask_in_order(engine, kept.make_requests(MANY_TOKENS)))
        assert engine.stats().total_preemptions > 0
        loop_of(engine)._scheduler.check_integrity()


@pytest.mark.parametrize("is_ahead", [False, True])
def test_swapped_to_the_host_and_back(kept: Kept, is_ahead: bool) -> None:
    """The device has blocks for one conversation, and few slots of states; the second time all comes from the host."""
    lengths = [-(-(len(expected.input_ids) + NUM_TOKENS) // BLOCK) for expected in kept.expected]
    options = {"num_gpu_blocks": max(lengths) + 1, "num_cpu_blocks": 32 * sum(lengths), "max_batch_size": 2}
    with build(kept, async_scheduling=is_ahead, **options) as engine:
        requests = kept.make_requests()
        kept.check_all(ask_in_order(engine, requests))
        outputs = ask_in_order(engine, requests)
        kept.check_all(outputs)
        assert all(cached_of(output) > 0 for output in outputs)
        scheduler = loop_of(engine)._scheduler
        assert engine.stats().total_host_kv_loads > 0
        if (states := scheduler._live.states) is not None:
            assert states.pool.host.total_loads > 0
        scheduler.check_integrity()


@pytest.mark.parametrize("way", ["tp", "pp"])
def test_several_ranks(kept: Kept, way: str) -> None:
    """Two processes have slices of every layer, or some layers each; chunks are short, and few blocks on the device."""
    longest = max(len(expected.input_ids) + NUM_TOKENS for expected in kept.expected)
    options: dict[str, Any] = {
        "block_size": BLOCK,
        "num_gpu_blocks": -(-longest // BLOCK) + 2,
        "num_cpu_blocks": 2000,
        way: 2,
    }
    config = EngineConfig(device_type="cpu", max_batch_size=2, max_prefill_token_num=30, **options)
    with AsyncEngine(str(kept.path), backend_config=config) as engine:
        for is_known in (False, True):
            outputs = ask(engine, kept.make_requests())
            kept.check_all(outputs)
            assert not is_known or all(cached_of(output) > 0 for output in outputs)


def leave(engine: AsyncEngine, request: GenerationRequest, num_tokens: int) -> None:
    """Ask, and leave as soon as `num_tokens` tokens of the answer are there."""
    ids: list[int] = []
    num_seen = 0

    def take(delta: OutputDelta) -> None:
        nonlocal num_seen
        num_seen += len(delta.token_ids)
        if num_seen >= num_tokens and ids:
            engine.abort(ids[0])

    ids += engine.submit_batch([request], take)
    if not num_tokens:
        engine.abort(ids[0])


def test_those_that_leave_disturb_nobody(kept: Kept, caching: AsyncEngine) -> None:
    """Requests are left after each number of tokens, in the middle of the others' answers."""
    caching.reset_caches()
    requests = kept.make_requests()
    for num_tokens in range(NUM_TOKENS):
        leave(caching, replace(requests[0], cache_salt=f"left {num_tokens}"), num_tokens)
        kept.check_all(ask(caching, requests))
    scheduler = loop_of(caching)._scheduler
    wait_until(lambda: not scheduler.has_work)
    scheduler.check_integrity()
    assert scheduler._live.states is None or not scheduler._live.states.pool.num_used


def test_a_full_pool_of_states_lets_requests_wait(kept: Kept, caching: AsyncEngine) -> None:
    states = loop_of(caching)._scheduler._live.states
    if states is None:
        pytest.skip("latent rows are in blocks, for which `test_preempted` waits")
    caching.reset_caches()
    taken = states.pool.allocate(states.pool.num_available - 1)
    try:
        kept.check_all(ask(caching, kept.make_requests()))
    finally:
        states.pool.release(taken)


def test_salts_and_adapters_share_nothing(kept: Kept, tmp_path: Path) -> None:
    folder = write_adapter(kept.path, tmp_path / "adapter", ADAPTED)
    with build(kept, adapters={"other": str(folder)}) as engine:
        plain = kept.make_requests()[0]
        adapted, salted = replace(plain, adapter_name="other"), replace(plain, cache_salt="tenant")
        alone = ask_one(engine, adapted)
        assert alone.error is None and list(alone.token_ids) != kept.expected[0].answer[:NUM_TOKENS]
        for request in (plain, salted):
            output = ask_one(engine, request)
            kept.check(output, 0, request=request.cache_salt)
            assert not cached_of(output), "another one's snapshot"
        for request in (salted, adapted, plain):
            output = ask_one(engine, request)
            assert cached_of(output) > 0
            assert list(output.token_ids) == list((alone if request is adapted else output).token_ids)
            if request is not adapted:
                kept.check(output, 0)
