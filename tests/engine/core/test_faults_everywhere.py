"""An exception at each call that the engine loop makes: every request ends once, the next ones are answered, and
nothing stays behind."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from differential import Question, Setup, World
from faults import Faults, Injected
from llm.backbones import Backbone, make_backbone

from seesay.config.grammar import Grammar
from seesay.engine.commands import ResetCaches
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.program import make_program
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan

PARTS = (
    "_scheduler", "_runner", "embeddings", "_grammars", "_grammars.masks", "_requests", "_reports", "_counts",
    "_commands", "_pacer", "_flight", "_suspects",
)  # fmt: skip
"""Attributes of the loop. Calls of the outbox that fail are those of its listener, and have a test of their own."""
MANY_TIMES = ("_scheduler", "_runner", "_flight", "_requests", "embeddings", "_grammars", "_grammars.masks")
"""Those whose calls 3 to 20 fail, too, in the slow part."""
NOT_CALLED = {
    "_scheduler": {"check_integrity", "abort", "reset", "stats"},
    "_runner": {
        "allocate_cache", "profile", "record_graphs", "warm_up", "measure_step_costs", "run", "drop_cache",
        "restore_cache", "restore_graphs",
    },
    "embeddings": {"start", "close", "stats", "expect", "forget", "drain", "drop_all", "is_encoded"},
    "_grammars": {"close", "forget"},
    "_grammars.masks": {"close"},
    "_requests": {"clear"},
    "_reports": {"on_ready", "on_failed", "on_launched"},
    "_counts": {"stats"},
    "_commands": {"add", "fail"},
    "_flight": {"forget"},
    "_suspects": {"clear"},
}  # fmt: skip
"""Those that other threads call, or that are made at the start, at the end, or when the loop begins anew."""
QUESTIONS = [
    Question(n % 6, (n % 3,) * (n % 2), n, SamplingParams(max_new_tokens=5, prompt_logprobs=1 if n == 4 else None))
    for n in range(7)
] + [
    Question(
        1,
        (),
        3,
        SamplingParams(max_new_tokens=16, eos_token_ids=tuple(range(3, 15))),
        make_program(Grammar(kind="regex", source="abcdeabcdf[a-d]{1,3}edcba")),
    ),
    Question(2, (1,), 5, SamplingParams(max_new_tokens=6, greedy=False, temperature=2.0, seed=3)),
]


def list_calls() -> list[tuple[str, str]]:
    """(part, method) of all that the loop may call, found on the classes of its parts."""
    from seesay.device.tower_pacer import TowerPacer
    from seesay.engine.core.embedding_supply import EmbeddingSupply
    from seesay.engine.core.encoder_reports import EncoderReports
    from seesay.engine.core.grammars.grammar_rows import GrammarRows
    from seesay.engine.core.grammars.step_masks import StepMasks
    from seesay.engine.core.live_requests import LiveRequests
    from seesay.engine.core.step_counts import StepCounts
    from seesay.engine.core.step_pipeline import StepPipeline
    from seesay.engine.core.suspects import Suspects
    from seesay.engine.core.waiting_commands import WaitingCommands
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.scheduling.scheduler import Scheduler

    kinds = (
        Scheduler, ModelRunner, EmbeddingSupply, GrammarRows, StepMasks, LiveRequests, EncoderReports, StepCounts,
        WaitingCommands, TowerPacer, StepPipeline, Suspects,
    )  # fmt: skip
    return [
        (part, name)
        for part, kind in zip(PARTS, kinds, strict=True)
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("_") and name not in NOT_CALLED.get(part, ())
    ]


CALLS = list_calls()


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return make_backbone("qwen2", tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="module", params=[False, True], ids=["in turns", "ahead"])
def world(backbone: Backbone, request: pytest.FixtureRequest) -> Iterator[World]:
    """Few blocks, so that they are saved and loaded, and some room for embeddings, so that these are made again."""
    setup = Setup(
        is_ahead=request.param,
        num_blocks=40,
        num_host_slots=20,
        embedding_bytes=1 << 9,
        lends=True,
        max_live=5,
        masks_beside=request.param,
    )
    world = World(backbone, setup, Faults())
    ask(world)  # so that what is opened once is open
    yield world
    world.close()


@pytest.fixture(scope="module")
def alone(backbone: Backbone) -> Iterator[list[list[int]]]:
    world = World(backbone, Setup(caching=False, max_live=1), Faults())
    asked = world.ask([(question, None) for question in QUESTIONS], random.Random(0))
    yield [one.token_ids for one in asked.values()]
    world.close()


def ask(world: World) -> list[list[int] | None]:
    """The answers of all questions; None for one that ended with an error. `World.ask` fails if one ends twice."""
    asked = world.ask([(question, None) for question in QUESTIONS], random.Random(0)).values()
    assert all(one.final is not None for one in asked)
    return [None if one.final is None or one.final.finish_reason == "error" else one.token_ids for one in asked]


class InjectedExit(BaseException):
    """As KeyboardInterrupt and SystemExit of a user's callback: no `except Exception` takes it."""


KINDS: tuple[Callable[[str], BaseException], ...] = (
    Injected,
    InjectedExit,
    lambda text: RequestError(ErrorCode.INVALID_REQUEST, f"{Injected.__name__}: {text}"),
    lambda text: torch.OutOfMemoryError(f"{Injected.__name__}: {text}"),
    lambda text: OSError(24, f"{Injected.__name__}: {text}"),
)
"""Exceptions that parts raise, by turns."""


def fail_once(
    world: World, part: str, name: str, number: int, make_error: Callable[[str], BaseException] = Injected
) -> tuple[Callable[[], None], list[int]]:
    """Let call `number` of a method raise, before it does anything or behind that. Returns how to undo it."""
    owner: Any = attrgetter(part)(world.loop)
    method = getattr(owner, name)
    calls: list[int] = []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            if number % 2:
                method(*arguments, **options)
            raise make_error(f"{part}.{name}")
        return method(*arguments, **options)

    setattr(owner, name, failing)
    return lambda: setattr(owner, name, method), calls


@pytest.mark.parametrize(
    ("part", "name", "number"),
    [
        pytest.param(part, name, number, marks=[pytest.mark.slow] * (number > 2))
        for part, name in CALLS
        for number in range(1, 21)
        if number <= 2
        or part in ("_scheduler", "_runner", "_flight", "_requests", "embeddings", "_grammars", "_grammars.masks")
    ],
)
def test_every_request_ends_and_the_next_ones_are_answered(
    world: World, alone: list[list[int]], part: str, name: str, number: int
) -> None:
    held = count_held()
    undo, calls = fail_once(world, part, name, number, choose_kind(part, name, number))
    try:
        found = ask(world)
        if name == "run":
            world.loop.run_command(ResetCaches())
        world.settle()  # the loop may fail now that nobody waits
    finally:
        undo()
    assert [one is None or one == expected for one, expected in zip(found, alone, strict=True)] == [True] * len(alone)
    assert ask(world) == alone, f"after {len(calls)} calls"
    assert world.loop.fault is None
    world.check_idle()
    assert count_held() == held


def choose_kind(part: str, name: str, number: int) -> Callable[[str], BaseException]:
    """One kind of exception after the other, for each method and each of its calls. `prepare` is called by who submits,
    and an exit there is the caller's."""
    kinds = [kind for kind in KINDS if name != "prepare" or kind is not InjectedExit]
    return kinds[(CALLS.index((part, name)) + number) % len(kinds)]


def count_held() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def test_a_bad_row_ends_alone(world: World, alone: list[list[int]]) -> None:
    """It fails in every step; all others are answered."""
    sample = world.runner.sample
    bad: list[int] = []

    def failing(launched: Any, *others: Any, **options: Any) -> None:
        rows = launched.step.rows if hasattr(launched, "step") else launched.launched.step.rows
        if not bad and len(rows) > 3:
            bad.append(rows[len(rows) // 2].seq_id)
        if bad and any(row.seq_id == bad[0] for row in rows):
            raise Injected("a bad row")
        sample(launched, *others, **options)

    any_runner: Any = world.runner
    any_runner.sample = failing
    try:
        found = ask(world)
    finally:
        any_runner.sample = sample
    assert bad and found.count(None) == 1
    assert all(one is None or one == expected for one, expected in zip(found, alone, strict=True))
    world.check_idle()


def test_a_reset_that_fails_says_so(world: World) -> None:
    undo, _ = fail_once(world, "_scheduler", "forget_prefixes", 1)
    try:
        with pytest.raises(Injected):
            world.loop.run_command(ResetCaches())
    finally:
        undo()
    world.loop.run_command(ResetCaches())
    assert None not in ask(world)


def test_a_listener_that_raises_loses_what_it_was_told_alone(backbone: Backbone, alone: list[list[int]]) -> None:
    world = World(backbone, Setup(), Faults())
    try:
        take, failures = world.on_outputs, [1]

        def failing(outputs: Any) -> None:
            take(outputs)
            if failures:
                failures.pop()
                raise Injected("the listener")

        any_world: Any = world
        any_world.on_outputs = failing
        ask(world)
        assert ask(world) == alone and not failures
        world.check_idle()
    finally:
        world.close()


class Dead(RuntimeError):
    """As torch says it of an illegal memory access: at every call from then on."""


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_dead_device_ends_the_engine(backbone: Backbone, is_ahead: bool) -> None:
    """With a reason, for those who wait and for those who come."""
    world = World(backbone, Setup(is_ahead=is_ahead), Faults())
    try:
        runner: Any = world.runner
        launch, is_dead = runner.launch, list[int]()

        def die(*_: Any, **__: Any) -> None:
            if is_dead:
                raise Dead("CUDA error: an illegal memory access was encountered")

        def launch_and_die(plan: StepPlan, *others: Any) -> Any:
            if len(plan.rows) > 2:
                is_dead.append(1)
            die()
            return launch(plan, *others)

        runner.launch, runner.check_device = launch_and_die, die
        assert None in ask(world)
        fault = world.loop.fault
        assert fault is not None and "illegal memory access" in fault.reason
        final = world.take_final(world.submit(QUESTIONS[0]))
        assert isinstance(final.error, RequestError) and final.error.code is ErrorCode.INTERNAL
        assert "illegal memory access" in str(final.error)
    finally:
        world.close()
    assert not world.loop._thread.is_alive()


def test_a_loop_that_fails_again_and_again_is_given_up(backbone: Backbone) -> None:
    world = World(backbone, Setup(), Faults())
    try:
        scheduler: Any = world.scheduler

        def fail(*_: Any) -> None:
            raise Injected("always")

        scheduler.plan_step = fail
        for _ in range(9):
            assert world.take_final(world.submit(QUESTIONS[0])).finish_reason == "error"
        assert "again and again" in str(world.loop.fault)
    finally:
        world.close()


def test_a_grammar_that_does_not_compile_ends_its_request_alone(backbone: Backbone) -> None:
    """The core takes programs; anything else fails where it is compiled, each time."""
    world = World(backbone, Setup(), Faults())
    try:
        [guided] = [question for question in QUESTIONS if question.grammar is not None]
        bad = replace(guided, grammar=Grammar(kind="regex", source="a"))
        for _ in range(2):
            assert world.take_final(world.submit(bad)).finish_reason == "error"
        assert None not in ask(world) and world.loop.fault is None
    finally:
        world.close()


def test_steps_that_all_fail_end_the_engine(backbone: Backbone) -> None:
    """And no row is to blame."""
    world = World(backbone, Setup(), Faults())
    try:
        runner: Any = world.runner

        def fail(*_: Any) -> None:
            raise Injected("never")

        loop: Any = world.loop
        runner.find_splices = fail
        assert ask(world) == [None] * len(QUESTIONS)
        assert loop.fault is None, "each row failed alone"
        loop._suspects.split = lambda _: None  # so that no row is ever alone
        assert None in ask(world)
        assert "one step after another" in str(loop.fault)
    finally:
        world.close()
