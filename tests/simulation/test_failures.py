"""An exception at each call that the engine loop makes: every request ends once, the next ones are right, and nothing
is left behind."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from seesay.engine.commands import PARTS, ResetCaches, Sleep, WakeUp

from .world import Setup, World

NUM_CALLS = 2
"""Calls of each kind at which an exception is raised; 20 in the slow test."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("seesay")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


def load(seed: int, *, is_ahead: bool) -> World:
    """A world with few blocks, so that sequences are preempted."""
    return World(Setup(is_ahead=is_ahead, num_blocks=16, num_host_slots=12, embedding_bytes=40), random.Random(seed))


def drive(world: World) -> None:
    """Let requests, commands and cancellations come, and all of them end."""
    rng = world.rng
    for index in range(24):
        asked = world.ask_any()
        if index == 5:
            world.ask_any(group_id=asked.request.request_id + 1, like=asked.request)
            world.ask_any(group_id=asked.request.request_id + 1, like=asked.request)
        if index == 8:
            world.command(ResetCaches())
        if index == 12:
            world.command(Sleep(level=1, running="finish"))
            world.command(WakeUp(tags=PARTS))
        if index % 7 == 6:
            world.abort(rng.choice(list(world.asked)))
        world.step_worker(fails=index == 15)
        world.turn()
        world.turn()
    world.settle()


def count_calls(*, is_ahead: bool) -> dict[str, int]:
    world = load(0, is_ahead=is_ahead)
    drive(world)
    return dict(world.injector.num_calls)


def check(name: str, at: int, *, is_after: bool, is_ahead: bool) -> None:
    """Raise once, at call `at` of `name`; then everything goes on, and new requests are answered as ever."""
    world = load(0, is_ahead=is_ahead)
    injector = world.injector

    def strike(called: str, after: bool) -> bool:
        return called == name and after == is_after and injector.num_calls[name] == at and not injector.num_raised

    injector.strike = strike
    drive(world)
    assert injector.num_raised == 1, f"{name} was not called {at} times"
    later = [world.ask_any() for _ in range(4)]
    world.settle()
    assert world.loop.fault is not None or not any(one.may_fail for one in later)


def check_all(num_calls: int) -> None:
    problems = []
    for is_ahead in (False, True):
        counts = count_calls(is_ahead=is_ahead)
        assert len(counts) >= 45, sorted(counts)
        for name, count in sorted(counts.items()):
            places = sorted({1 + index * (count - 1) // max(1, num_calls - 1) for index in range(num_calls)})
            for at in places:
                for is_after in (False, True):
                    try:
                        check(name, at, is_after=is_after, is_ahead=is_ahead)
                    except AssertionError as error:
                        problems.append(f"{name} call {at} after={is_after} ahead={is_ahead}: {error}"[:300])
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems[:20])


def test_an_exception_at_any_call_ends_no_loop() -> None:
    check_all(NUM_CALLS)


@pytest.mark.slow
def test_an_exception_at_any_of_twenty_calls_ends_no_loop() -> None:
    check_all(20)


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("num_bad", [1, 3])
def test_the_row_that_fails_alone_ends_and_no_other(is_ahead: bool, num_bad: int) -> None:
    setup = Setup(is_ahead=is_ahead, num_blocks=400, max_batch_size=64, chunk=64)
    world = World(setup, random.Random(3))
    asked = [world.ask_any() for _ in range(60)]
    bad = {one.request.request_id for one in asked[7 :: 60 // num_bad][:num_bad]}
    world.runner.breaks |= bad
    for one in asked:
        one.may_fail = one.request.request_id in bad
    world.settle()
    assert {n for n, one in world.asked.items() if one.final is not None and one.final.error is not None} == bad


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_step_too_large_for_memory_is_made_smaller(is_ahead: bool) -> None:
    """More than 5 rows never fit: everybody is answered all the same."""
    world = World(Setup(is_ahead=is_ahead, num_blocks=400, max_batch_size=64, chunk=64), random.Random(3))
    launch = world.runner.launch

    def limited(plan: object, splices: object) -> object:
        if len(plan.rows) > 5:  # type: ignore[attr-defined]
            raise MemoryError
        return launch(plan, splices)  # type: ignore[arg-type]

    world.runner.launch = limited  # type: ignore[method-assign, assignment]
    for _ in range(40):
        world.ask_any()
    world.settle()


def test_no_exception_is_raised_in_what_the_thread_of_the_encoder_does() -> None:
    """Falling asleep waits for the encoder, whose real worker reports its own exceptions: none may lose a picture."""
    world = World(Setup(rate=1.0), random.Random(3))
    while not world.worker.queue:
        world.ask_any()
        world.turn()
    world.injector.strike = lambda name, _is_after: name == "store.put"
    world.command(Sleep(level=1, running="abort"))
    for _ in range(9):
        world.turn()
    assert world.loop.status.asleep and not world.loop.embeddings.store._in_flight, "nobody will encode these"
    world.settle()


def test_a_lost_device_ends_all_requests_with_the_reason() -> None:
    world = World(Setup(), random.Random(3))
    asked = [world.ask_any() for _ in range(5)]
    world.runner.is_lost = True
    for _ in range(60):
        world.step_worker()
        world.turn()
    assert world.loop.fault is not None and "illegal memory access" in world.loop.fault.reason
    for one in asked:
        assert one.final is not None and one.final.finish_reason == "error"


def test_an_outbox_that_fails_leaves_no_request_without_an_end() -> None:
    """The final output is lost, not the end of its request."""
    world = World(Setup(), random.Random(3))
    asked = [world.ask_any() for _ in range(8)]
    world.injector.strike = lambda name, is_after: name == "outbox.send" and not is_after
    world.settle()
    assert {one.final.finish_reason for one in asked if one.final is not None} <= {"error", "abort"}
