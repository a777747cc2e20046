"""A whole engine loop in one thread, under a virtual clock: requests, cancellations, commands, slow and failing
encoders and exceptions at any call, drawn from a seed. The same seed gives the same run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from seesay.config import VisionConfig
from seesay.engine.commands import PARTS, Command, ResetCaches, Sleep, WakeUp
from seesay.engine.core.loop import EngineLoop
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.values import MediaItem, Modality, MultimodalInput

from .parts import (
    EOS,
    NUM_TOKENS,
    Clock,
    SimulatedRunner,
    SimulatedWeights,
    SimulatedWorker,
    extend,
    places,
    root_of,
    token_of,
)

SESSION_LEN = 48
MAX_IDLE_TURNS = 600


LAST_RESORTS = {"outbox.give_up", "outbox.fail", "outbox.fail_all", "outbox.fail_taken", "outbox.take", "store.begin"}
"""What ends requests when everything else has failed, and the note by which it knows them. `store.begin` promises that
somebody encodes an item; nothing between that and the worker's queue can fail."""


class InjectedError(RuntimeError):
    """An exception that the simulation raised."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How an engine is built. rate: of exceptions, by call."""

    is_ahead: bool = False
    num_blocks: int = 24
    block_size: int = 4
    num_host_slots: int = 0
    chunk: int = 16
    max_batch_size: int = 6
    caching: bool = True
    embedding_bytes: int = 200
    rate: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random) -> Setup:
        return cls(
            is_ahead=rng.random() < 0.6,
            num_blocks=rng.choice((13, 16, 24, 60)),
            num_host_slots=rng.choice((0, 0, 6, 40)),
            chunk=rng.choice((5, 16, 64)),
            max_batch_size=rng.choice((1, 2, 4, 8)),
            caching=rng.random() < 0.8,
            embedding_bytes=rng.choice((0, 40, 1000)),
            rate=rng.choice((0.0, 0.0, 0.002, 0.01)),
        )


@dataclass
class Asked:
    """A request and what came back. may_fail: whether something was done that may end it with an error."""

    request: TokenRequest
    expected: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    final: TokenOutput | None = None
    may_fail: bool = False
    is_left: bool = False


class Injector:
    """Wraps the public calls of objects, in which an exception can be raised before or after. Only calls that the loop
    makes in its turns count."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.num_calls: dict[str, int] = {}
        self.is_on = False
        self.strike: Callable[[str, bool], bool] = lambda _name, _is_after: False
        self.num_raised = 0

    def wrap(self, name: str, part: Any) -> None:
        for key in dir(type(part)):
            if key.startswith("_") or f"{name}.{key}" in LAST_RESORTS or not callable(getattr(type(part), key, None)):
                continue
            if isinstance(getattr(type(part), key), type):
                continue
            self.names.append(f"{name}.{key}")
            setattr(part, key, partial(self._call, f"{name}.{key}", getattr(part, key)))

    def exempt(self, call: Callable[[], None]) -> None:
        """Make a call in which no exception is raised: what it does is done by another thread in a real engine."""
        was_on, self.is_on = self.is_on, False
        try:
            call()
        finally:
            self.is_on = was_on

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not self.is_on:
            return call(*args, **options)
        self.num_calls[name] = self.num_calls.get(name, 0) + 1
        self._strike(name, False)
        result = call(*args, **options)
        self._strike(name, True)
        return result

    def _strike(self, name: str, is_after: bool) -> None:
        if self.is_on and self.strike(name, is_after):
            self.num_raised += 1
            raise InjectedError(f"{'after' if is_after else 'before'} {name}")


class World:
    """An engine loop with simulated surroundings."""

    def __init__(self, setup: Setup, rng: random.Random) -> None:
        self.setup, self.rng, self.clock = setup, rng, Clock()
        self.problems: list[str] = []
        self.asked: dict[int, Asked] = {}
        self.commands: list[Future[None]] = []
        self.injector = Injector()
        self.num_turns = 0
        self._salts: dict[int, bytes] = {}
        self._wanted: list[tuple[int, int]] = []
        pool = BlockPool(setup.num_blocks, setup.block_size, setup.caching, setup.num_host_slots)
        config = SchedulerConfig(
            max_batch_size=setup.max_batch_size, max_prefill_token_num=setup.chunk, session_len=SESSION_LEN
        )
        self.scheduler = Scheduler(config, pool, clock=self.clock)
        self.runner = SimulatedRunner(pool, self._salts, self.problems)
        self.runner.on_apply = self._check_plan
        runner: Any = self.runner
        weights: Any = SimulatedWeights()
        self.injector.wrap("scheduler", self.scheduler)
        self.injector.wrap("runner", self.runner)
        self.loop = EngineLoop(
            scheduler=self.scheduler,
            runner=runner,
            encoder=None,
            vision_config=VisionConfig(embedding_cache_bytes=setup.embedding_bytes),
            weights=weights,
            is_ahead=setup.is_ahead,
        )
        loop: Any = self.loop
        loop._outbox.listener = self
        self.worker = SimulatedWorker(
            loop.embeddings.store,
            self.clock,
            lambda: self.rng.choice((0.0, 0.0, 0.01, 0.1)),
            on_ready=loop._reports.on_ready,
            on_failed=loop._reports.on_failed,
        )
        drain = partial(self.injector.exempt, self.worker.drain)
        self.worker.drain = drain  # type: ignore[method-assign]
        loop.embeddings.worker = self.worker
        loop.embeddings._on_features_wanted = self.on_features_wanted
        for name in (
            "embeddings",
            "reports",
            "grammars",
            "requests",
            "flight",
            "pacer",
            "counts",
            "commands",
            "suspects",
        ):
            self.injector.wrap(name, getattr(loop, name if name == "embeddings" else f"_{name}"))
        self.injector.wrap("outbox", loop._outbox)
        self.injector.wrap("store", loop.embeddings.store)
        self.injector.wrap("control", loop.control)

    # --- what comes from outside --------------------------------------------------------------------------------------

    def ask(self, request: TokenRequest) -> Asked:
        """Submit a request; what it must be answered is known at once."""
        asked = self.asked[request.request_id] = Asked(request, find_answer(request))
        self._salts[request.request_id] = request.cache_salt
        self.loop.submit([request])
        return asked

    def ask_any(self, *, group_id: int | None = None, like: TokenRequest | None = None) -> Asked:
        """Submit a random request, or one more like another."""
        rng, number = self.rng, len(self.asked) + 1
        if like is None:
            like = TokenRequest(
                request_id=number,
                prompt=draw_prompt(rng),
                params=SamplingParams(
                    max_new_tokens=rng.choice((0, 1, 2, 5, 12)),
                    eos_token_ids=(EOS,),
                    ignore_eos=rng.random() < 0.3,
                ),
                owner=rng.choice((None, None, "a", "b")),
                priority=rng.choice((0, 0, 0, -1, 2)),
                cache_salt=rng.choice((b"", b"", b"x")),
                is_streamed=rng.random() < 0.5,
                defers_tokens=rng.random() < 0.3,
            )
        fields = {name: getattr(like, name) for name in TokenRequest.__slots__}
        return self.ask(TokenRequest(**{**fields, "request_id": number, "group_id": group_id}))

    def abort(self, request_id: int) -> None:
        self.asked[request_id].is_left = True
        self.loop.abort([request_id])

    def command(self, command: Command) -> None:
        """Give a command, as `run_command` does, without waiting for its end."""
        done: Future[None] = Future()
        for one in self.asked.values():
            one.is_left |= getattr(command, "running", None) == "abort"
        loop: Any = self.loop
        loop._inbox.put(partial(loop._command_runner._take, command, done))
        self.commands.append(done)

    # --- what comes back ----------------------------------------------------------------------------------------------

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            asked = self.asked[output.request_id]
            if asked.final is not None:
                self.problems.append(f"request {output.request_id} ended twice")
            asked.token_ids.extend(output.token_ids)
            if output.finish_reason is not None:
                asked.final = output

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        self._wanted.append((request_id, item_index))

    # --- time ---------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Let some time pass, and the loop make one turn."""
        self.num_turns += 1
        self.clock.now_s += 0.004
        loop: Any = self.loop
        for request_id, index in self._wanted:
            number = len(self.asked[request_id].request.prompt.items[index].slots)
            self.loop.give_features(request_id, index, {"rows": np.array(number)})
        self._wanted.clear()
        if self.loop.fault is not None:
            return
        before = self.injector.num_raised
        self.injector.is_on = True
        try:
            loop._turn(waits=False)
        finally:
            self.injector.is_on = False
        if self.injector.num_raised != before:
            for asked in self.asked.values():
                asked.may_fail = True
        if loop._flight.is_empty or not self.setup.is_ahead:
            self.scheduler.check_integrity()
        loop.embeddings.store.check_integrity()
        assert not self.problems, self.problems

    def step_worker(self, *, fails: bool = False) -> None:
        if fails:
            waiting = {item.hash for _, item in self.worker.queue}
            for asked in self.asked.values():
                asked.may_fail |= any(item.hash in waiting for item in asked.request.prompt.items)
        self.worker.step(fails=fails)

    def settle(self) -> None:
        """Nothing comes any more: everybody is answered within a bounded number of turns, and nothing is left."""
        for _ in range(MAX_IDLE_TURNS):
            if all(one.final is not None for one in self.asked.values()) and all(c.done() for c in self.commands):
                break
            if self.loop.status.asleep and not self.worker.queue:
                self.command(WakeUp(tags=PARTS))
            self.step_worker()
            if self.loop.fault is not None:
                break
            self.turn()
        else:
            missing = [number for number, one in self.asked.items() if one.final is None]
            raise AssertionError(f"after {MAX_IDLE_TURNS} turns without an event, {missing} are not answered")
        self.check_answers()
        if self.loop.fault is not None:  # too much failed at once: all are answered, and no more is to be asked
            assert self.setup.rate, self.loop.fault
            return
        for _ in range(3):
            self.step_worker()
            self.turn()
        self.check_idle()

    # --- what must be true --------------------------------------------------------------------------------------------

    def _check_plan(self, plan: StepPlan) -> None:
        config = self.scheduler.config
        if plan.num_tokens > config.max_prefill_token_num:
            self.problems.append(f"a plan has {plan.num_tokens} tokens")
        if len({row.seq_id for row in plan.rows}) != len(plan.rows) or len(plan.rows) > config.max_batch_size:
            self.problems.append(f"a plan has the rows {plan.rows}")
        if any(row.num_tokens < 1 for row in plan.rows):
            self.problems.append(f"a plan has an empty row: {plan.rows}")

    def check_answers(self) -> None:
        """Every answer is right as far as it goes, and complete unless something was done to it."""
        for number, one in self.asked.items():
            assert one.final is not None, number
            found = tuple(one.token_ids)
            assert found == one.expected[: len(found)], f"request {number}: {found} is not {one.expected}"
            reason = one.final.finish_reason
            if reason in ("stop", "length"):
                assert found == one.expected, f"request {number} ended at {found}, before {one.expected}"
            elif reason == "error":
                refusal = getattr(one.final.error, "code", None)
                assert (
                    one.may_fail
                    or self.loop.fault is not None
                    or str(refusal) in ("out_of_memory", "sleeping", "conflict")
                ), one.final.error
            else:
                assert one.is_left or one.may_fail, f"request {number} was aborted by nobody"

    def check_idle(self) -> None:
        """Nothing is held by anybody."""
        loop: Any = self.loop
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_wanted_embedding_rows) == (0, 0, 0), stats
        assert stats.num_used_kv_blocks == 0, stats
        assert loop.embeddings.store.stats().pinned_embedding_bytes == 0
        assert not loop.embeddings.store._pins and not loop.embeddings._asked and not loop.embeddings._expected
        assert not loop._live and not loop._requests.processors and not loop._requests._outputs
        assert not loop._grammars._rules and not any(loop._requests.held.values())
        assert not loop._commands and not loop._outbox._open
        assert loop._flight.is_empty
        assert self.loop.status.asleep or not len(self.runner.rows), "the runner knows sequences that are over"
        assert self.loop.fault is None, self.loop.fault


def draw_prompt(rng: random.Random) -> MultimodalInput:
    """A prompt of a few common beginnings, pictures and an end."""
    first = rng.choice((1, 2))
    token_ids = [(first + i) % NUM_TOKENS for i in range(rng.choice((0, 4, 9, 14)))]
    items: list[MediaItem] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        number = rng.randrange(4)
        start, rows = len(token_ids), 1 + number
        items.append(
            MediaItem(
                modality=Modality.IMAGE,
                span=(start, start + rows),
                slots=np.arange(start, start + rows),
                hash=number.to_bytes(32, "little"),
                features={"rows": np.array(rows)},
                num_units=rows,
                has_arrays=rng.random() < 0.7,
            )
        )
        token_ids += [NUM_TOKENS] * rows
    token_ids += [(first * 3 + i) % NUM_TOKENS for i in range(rng.choice((1, 2, 5)))]
    return MultimodalInput(
        token_ids=np.array(token_ids),
        positions=np.arange(len(token_ids)),
        next_position=len(token_ids),
        items=tuple(items),
    )


def find_answer(request: TokenRequest) -> tuple[int, ...]:
    """The answer to a request that is alone."""
    value, media = root_of(request.cache_salt), places(request.prompt.items)
    token_ids: list[int] = request.prompt.token_ids.tolist()
    for index, token_id in enumerate(token_ids):
        value = extend(value, token_id, index, media.get(index))
    answer: list[int] = []
    params = request.params
    while len(answer) < params.max_new_tokens and len(token_ids) + len(answer) < SESSION_LEN:
        answer.append(token_of(value))
        if answer[-1] == EOS and not params.ignore_eos:
            break
        value = extend(value, answer[-1], len(token_ids) + len(answer) - 1, None)
    return tuple(answer)


def simulate(seed: int) -> World:
    """Run one seed to its end. Raises `AssertionError` for whatever is wrong."""
    rng = random.Random(seed)
    setup = Setup.draw(rng)
    world = World(setup, rng)
    if setup.rate:
        world.injector.strike = lambda _name, _is_after: rng.random() < setup.rate
    for _ in range(rng.choice((10, 25, 40))):
        if world.loop.fault is not None:
            break
        event = rng.random()
        if event < 0.40:
            asked = world.ask_any()
            if rng.random() < 0.15:
                group_id = asked.request.request_id + 1
                for _ in range(rng.choice((2, 3))):
                    world.ask_any(group_id=group_id, like=asked.request)
        elif event < 0.48 and world.asked:
            world.abort(rng.choice(list(world.asked)))
        elif event < 0.52:
            world.command(ResetCaches())
        elif event < 0.54:
            world.command(Sleep(level=rng.choice((1, 1)), running=rng.choice(("finish", "abort"))))
        elif event < 0.57:
            world.command(WakeUp(tags=PARTS))
        world.step_worker(fails=rng.random() < 0.03)
        for _ in range(rng.choice((0, 1, 1, 3))):
            world.turn()
    world.injector.strike = lambda _name, _is_after: False
    world.settle()
    return world
