"""The engine loop when messages are late, copies and steps fail: one sequence of events each, in a fixed order."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from asking import loop_of, parse
from differential import ADAPTERS, Asked, Question, Setup, World, lend_before_the_end, write_adapters
from faults import Faults
from llm.backbones import Backbone, composed, make_backbone
from waiting import wait_until

from seesay.config import EngineConfig
from seesay.config.grammar import Grammar
from seesay.engine.commands import DropStaged, ModelStatus, ResetCaches, UnloadAdapter
from seesay.engine.core.adapters import AdapterPlaces
from seesay.engine.core.live_requests import Awaited
from seesay.engine.core.step_faults import EngineLostError
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.token_messages import CoreFacts, TokenOutput, TokenRequest
from seesay.engine.watchdog import Fault
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.program import make_program
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.step_input import StepRows
from seesay.values import OutputDelta

PICTURE = Question(0, (1,), 3, SamplingParams(max_new_tokens=4))
Make = Callable[..., World]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return make_backbone("qwen2", tmp_path_factory.mktemp("qwen2"))


@pytest.fixture
def make_world(backbone: Backbone) -> Iterator[Make]:
    made: list[World] = []

    def make(faults: Faults | None = None, **options: Any) -> World:
        made.append(World(backbone, Setup(**options), faults or Faults()))
        return made[-1]

    yield make
    for world in made:
        world.close()


def ask(world: World, *questions: Question) -> list[Asked]:
    asked = list(world.ask([(question, None) for question in questions], random.Random(0)).values())
    assert all(one.final is not None and one.final.error is None for one in asked), [one.final for one in asked]
    return asked


class Gate:
    """Holds calls until they are let through, one by one."""

    def __init__(self) -> None:
        self.arrived, self._passes = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self) -> None:
        self.arrived.release()
        assert self._passes.acquire(timeout=60)

    def open(self) -> None:
        assert self.arrived.acquire(timeout=60)
        self._passes.release()


@pytest.mark.parametrize("fails", [False, True])
def test_a_late_message_about_a_picture_is_not_about_those_who_ask_again(make_world: Make, fails: bool) -> None:
    """The first request is aborted while its picture is encoded, and nothing is kept of that. The message that the
    encoding is over comes when it is encoded again, for the second request."""
    gate = Gate()

    class Held(Faults):
        num_calls = 0

        def strike(self, name: str, step: StepPlan | StepRows | None = None) -> None:
            if name == "encode":
                self.num_calls += 1
                if self.num_calls > 1:  # behind the expected answer
                    gate.wait()
                if fails and self.num_calls == 2:
                    raise ValueError("a bad moment")

    world = make_world(Held(), embedding_bytes=0, caching=False)
    [expected] = ask(world, PICTURE)
    worker: Any = world.loop.embeddings.worker
    reports = worker._on_ready, worker._on_failed
    late, is_over = [], threading.Event()

    def keep(report: Callable[..., None]) -> Callable[..., None]:
        def take(*message: Any) -> None:
            worker._on_ready, worker._on_failed = reports
            late.append((report, message))
            is_over.set()

        return take

    worker._on_ready, worker._on_failed = map(keep, reports)
    first = world.submit(PICTURE)
    gate.arrived.acquire()
    world.loop.abort([first])
    assert world.take_final(first).finish_reason == "abort"
    gate.arrived.release()
    gate.open()
    assert is_over.wait(60)
    second = world.submit(PICTURE)
    gate.arrived.acquire()  # the picture is being encoded again
    [(report, message)] = late
    report(*message)
    world.settle()
    gate.arrived.release()
    gate.open()
    final = world.take_final(second)
    assert final.error is None and list(final.token_ids) == expected.token_ids


def test_steps_behind_a_tower_call_that_is_not_over_answer_as_later_ones(make_world: Make) -> None:
    """Who asks for the same picture meanwhile waits for its end: it may fail."""
    world = make_world(is_ahead=True, embedding_bytes=0, caching=False)
    question = replace(PICTURE, params=SamplingParams(max_new_tokens=60))
    [expected] = ask(world, question)
    gate = Gate()

    def end(launched: Any) -> bool:
        gate.wait()
        return False

    lend_before_the_end(world.loop.embeddings.worker, end)
    first = world.submit(question, streams=True)
    assert world.take_delta().token_ids == tuple(expected.token_ids[:1])
    second = world.submit(replace(question, tail=4))
    world.settle()
    gate.open()
    finals: dict[int, TokenOutput] = {}
    while len(finals) < 2:
        output = world.take_delta()
        if output.finish_reason is not None:
            finals[output.request_id] = output
    report = finals[first].report
    assert report is not None and report.encoded_items == (0,) and report.encode_s > 0
    assert finals[first].error is None and finals[second].error is None
    world.check_idle()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_tower_call_that_fails_ends_who_computed_with_its_embedding(make_world: Make, is_late: bool) -> None:
    """Before or after the first step that read it. Nothing of that is found later."""
    question = replace(PICTURE, params=SamplingParams(max_new_tokens=40))
    world = make_world(is_ahead=True)
    gate, failing = Gate(), True

    def end(launched: Any) -> bool:
        if not failing:
            return False
        if is_late:
            gate.wait()
        worker: Any = world.loop.embeddings.worker
        for entry in launched.batch:
            worker._fail(entry, RequestError(ErrorCode.INTERNAL, "the tower failed"))
        return True

    lend_before_the_end(world.loop.embeddings.worker, end)
    for _ in range(3):
        request_id = world.submit(question, streams=True)
        if is_late:
            world.take_delta()
            gate.open()
        final = world.take_final(request_id)
        assert final.finish_reason == "error" and "the tower failed" in str(final.error)
        assert final.report is not None and final.report.num_cached_tokens == 0 and final.failed_item == 0
    failing = False
    [good] = ask(world, question)
    assert good.final is not None and good.final.report is not None and good.final.report.num_cached_tokens == 0
    assert good.token_ids == ask(make_world(caching=False), question)[0].token_ids
    world.check_idle()


def test_a_failed_copy_costs_a_computation_and_no_answer(make_world: Make) -> None:
    """Whether blocks could not be saved or not be loaded: what they were to hold is found nowhere afterwards."""
    questions = [Question(n % 5, (), n, SamplingParams(max_new_tokens=6)) for n in range(10)]
    alone = [one.token_ids for one in ask(make_world(caching=False, max_live=1), *questions)]
    failed: list[tuple[Sequence[Any], Sequence[Any]]] = []

    class FailedCopies(Faults):
        is_on = False

        def before_copy(self, saves: Sequence[Any], loads: Sequence[Any]) -> None:
            if self.is_on and (loads or len(saves) % 2):
                failed.append((saves, loads))
                raise OSError("not now")

    copies = FailedCopies()
    world = make_world(copies, num_blocks=8, num_host_slots=40, max_live=1)
    for _ in range(3):
        copies.is_on = True
        assert [one.token_ids for one in ask(world, *questions)] == alone
        copies.is_on = False
        assert [one.token_ids for one in ask(world, *questions)] == alone
    assert any(saves for saves, _ in failed) and any(loads for _, loads in failed)
    assert world.scheduler.stats().total_host_kv_loads > len(failed)
    world.check_idle()


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_whose_results_are_lost_changes_no_answer(make_world: Make, when: str, is_ahead: bool) -> None:
    """`collect` fails while the next step is being computed with the tokens of the failed one."""
    questions = [Question(n % 7, (), n, SamplingParams(max_new_tokens=9)) for n in range(6)]
    drawn = SamplingParams(max_new_tokens=9, greedy=False, temperature=2.0, seed=3, repetition_penalty=1.2)
    questions += [Question(n, (), n, drawn) for n in range(3)]
    alone = [one.token_ids for one in ask(make_world(caching=False, max_live=1), *questions)]
    failed, steps = [], count()

    class Lost(Faults):
        def strike(self, name: str, step: StepPlan | StepRows | None = None) -> None:
            if name == f"{when} collect" and step is not None and len(step.rows) > 1 and next(steps) % 2 == 0:
                failed.append(step)
                raise RuntimeError("lost")

    world = make_world(Lost(), is_ahead=is_ahead, max_live=9)
    assert [one.token_ids for one in ask(world, *questions)] == alone
    assert len(failed) >= 3
    world.check_idle()


def test_a_loop_that_fails_says_so_at_once(make_world: Make) -> None:
    """Not when the next request arrives."""
    question = Question(1, (), 2, SamplingParams(max_new_tokens=6))
    world = make_world()
    apply, faults = world.runner.apply, [AssertionError("a fault of ours")]

    def fail(plan: StepPlan) -> None:
        apply(plan)
        if plan.rows and faults:
            raise faults.pop()

    world.runner.apply = fail  # type: ignore[method-assign]
    final = world.take_final(world.submit(question))
    assert isinstance(final.error, RequestError) and final.error.code is ErrorCode.INTERNAL
    [one] = ask(world, question)
    assert one.final is not None and one.final.finish_reason != "error"
    world.check_idle()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("host", [0, 60])
def test_a_transient_nan_ends_one_request_and_is_kept_nowhere(
    make_world: Make, monkeypatch: pytest.MonkeyPatch, value: float, is_ahead: bool, host: int
) -> None:
    """A value of one layer is spoiled once, in a chunk that does not sample. Those that began with the same text, and
    those that begin with it later, are answered as if nothing had been."""
    long = Question(6, (), 5, SamplingParams(max_new_tokens=4))  # a beginning of 17 tokens, in chunks of 8
    others = [Question(6, (), n, SamplingParams(max_new_tokens=4)) for n in (2, 3)] + [Question(5, (), 1, long.params)]
    alone = [one.token_ids for one in ask(make_world(caching=False, max_live=1), long, *others)]
    world = make_world(is_ahead=is_ahead, chunk=8, num_blocks=40, num_host_slots=host)
    layers: Any = composed(world.runner)._layers
    calls: list[Any] = []
    attention = layers[-1]._attention
    qkv = attention.qkv.text

    class Spoiled:
        def __call__(self, x: Any) -> Any:
            out = qkv(x)
            if len(x) == 8 and not calls:
                calls.append(len(x))
                out.view(8, -1, attention._head_dim)[3, -1, 0] = value  # a value of the chunk's fourth token
            return out

        def __getattr__(self, name: str) -> Any:
            return getattr(qkv, name)

    monkeypatch.setattr(attention.qkv, "text", Spoiled())
    bad, *good = world.ask([(question, None) for question in (long, *others)], random.Random(0)).values()
    assert calls and bad.final is not None
    assert bad.final.finish_reason == "error" and "not finite" in str(bad.final.error)
    assert [one.token_ids for one in good] == alone[1:], "those who waited for the spoiled block"
    assert world.loop.stats().total_not_finite == 1
    for _ in range(2):
        assert [one.token_ids for one in ask(world, long, *others)] == alone
    assert world.loop.stats().total_not_finite == 1
    world.check_idle()


def test_what_a_faulty_answer_began_with_is_forgotten(make_world: Make) -> None:
    """A block that holds something else than was computed costs one answer, wherever its content is found."""
    question = Question(6, (), 5, SamplingParams(max_new_tokens=4))
    world = make_world(num_blocks=40)
    [first] = ask(world, question)
    assert world.runner._cache is not None
    for pool in world.runner._cache.pools:
        pool[:2] = float("nan")
    [spoiled] = world.ask([(question, None)], random.Random(0)).values()
    assert spoiled.final is not None and spoiled.final.finish_reason == "error"
    assert ask(world, question)[0].token_ids == first.token_ids
    assert world.loop.stats().total_not_finite == 1


@pytest.mark.parametrize("is_ahead", [False, True])
def test_reset_caches_forgets_everything_and_harms_no_answer(make_world: Make, is_ahead: bool) -> None:
    questions = [Question(n % 7, (n % 6,) * (n % 2), n, SamplingParams(max_new_tokens=9)) for n in range(12)]
    alone = [one.token_ids for one in ask(make_world(caching=False, max_live=1), *questions)]
    world = make_world(is_ahead=is_ahead, num_blocks=24, num_host_slots=40)
    is_over = threading.Event()

    def reset_often() -> None:
        while not is_over.wait(0.003):
            world.loop.run_command(ResetCaches())

    resetting = threading.Thread(target=reset_often)
    resetting.start()
    try:
        for _ in range(3):
            assert [one.token_ids for one in ask(world, *questions)] == alone
    finally:
        is_over.set()
        resetting.join()
    world.loop.run_command(ResetCaches())
    stats = world.loop.stats()
    assert (stats.num_embeddings, stats.num_cached_kv_blocks, stats.num_used_host_kv_blocks) == (0, 0, 0)
    [again] = ask(world, questions[6])
    assert again.final is not None and again.final.report is not None and again.final.report.num_cached_tokens == 0
    world.check_idle()


def test_what_ran_when_the_caches_were_reset_is_found_by_nobody(make_world: Make) -> None:
    """Its later blocks rest on the ones that were forgotten."""
    long = Question(6, (), 5, SamplingParams(max_new_tokens=40))
    world = make_world(num_blocks=60)
    request_id = world.submit(long, streams=True)
    world.take_delta()
    world.loop.run_command(ResetCaches())
    world.take_final(request_id)
    assert world.loop.stats().num_cached_kv_blocks == 0
    ask(world, long)
    assert world.loop.stats().num_cached_kv_blocks > 0


def test_closed_loops_do_not_hang_who_resets(make_world: Make) -> None:
    world = make_world()
    world.close()

    def reset() -> None:
        with pytest.raises(RequestError, match="the engine is closed"):
            world.loop.run_command(ResetCaches())

    resetting = threading.Thread(target=reset, daemon=True)
    resetting.start()
    resetting.join(60)
    assert not resetting.is_alive()


def test_what_comes_behind_a_command_waits_for_it_and_is_answered(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Weights are replaced when nothing runs; the request that came meanwhile begins then."""
    path = str(tiny_checkpoint("llama"))
    with AsyncEngine(path, backend_config=EngineConfig(device_type="cpu", block_size=16)) as engine:
        arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        loop = loop_of(engine)
        engine.submit_batch(parse(["go"], max_new_tokens=300, ignore_eos=True), arrived.put)
        assert arrived.get(timeout=60).finish_reason is None
        updating = threading.Thread(target=engine.update_weights, args=(path,))
        updating.start()
        wait_until(lambda: bool(loop._commands))
        [second] = engine.submit_batch(parse(["hello"], max_new_tokens=3, ignore_eos=True), arrived.put)
        wait_until(lambda: bool(loop._requests.held[Awaited.COMMANDS]))
        order = []
        while second not in order:
            delta = arrived.get(timeout=60)
            if delta.finish_reason is not None:
                assert delta.finish_reason == "length"
                order.append(delta.request_id)
        assert len(order) == 2, "the first one ended before"
        updating.join(60)
        assert loop.control is not None and loop.status.epoch == 1
    assert loop.control is None, "it would hold the weights"


def test_requests_whose_adapter_was_unloaded_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    backbone = make_backbone("qwen2", tmp_path_factory.mktemp("adapted"))
    write_adapters(backbone.path)
    world = World(backbone, Setup(adapter_slots=1), Faults())
    try:
        assert {each.name for each in world.loop.adapters.loaded} == set(ADAPTERS)
        question = replace(PICTURE, adapter="query")
        ask(world, question)
        world.loop.run_command(UnloadAdapter(name="query"))
        final = world.take_final(world.submit(question))
        assert final.error is not None and "the adapter of the request was unloaded" in str(final.error)
        ask(world, replace(PICTURE, adapter="down"))
    finally:
        world.close()


# --- what a frontend asks of it ---------------------------------------------------------------------------------------


def hash_of(question: Question) -> bytes:
    return question.make_prompt().items[0].hash


def test_the_loop_says_what_it_is(make_world: Make) -> None:
    loop = make_world().loop
    assert loop.facts == CoreFacts(
        device="cpu", dtype="float32", session_len=96, max_batch_size=8, takes_media=True, resizes_on_device=False
    )
    assert loop.status == loop.confirm_status() == ModelStatus() and loop.fault is None


def test_a_part_is_busy_while_it_computes(make_world: Make) -> None:
    gate = Gate()

    class Held(Faults):
        def strike(self, name: str, step: StepPlan | StepRows | None = None) -> None:
            if name in ("encode", "before collect"):
                gate.wait()

    world = make_world(Held())

    def is_busy(part: str) -> bool:
        return [name for name, busy_s in world.loop.busy_s().items() if busy_s] == [part]

    assert world.loop.busy_s() == {"engine": 0.0, "encoder": 0.0}
    request_id = world.submit(replace(PICTURE, params=SamplingParams(max_new_tokens=1)))
    for expected in ("encoder", "engine"):
        assert gate.arrived.acquire(timeout=60)
        wait_until(partial(is_busy, expected))
        gate.arrived.release()
        gate.open()
    assert world.take_final(request_id).error is None


def test_a_request_ends_with_the_reason_of_its_frontend(make_world: Make) -> None:
    world = make_world()
    request_id = world.submit(Question(1, (), 2, SamplingParams(max_new_tokens=80)), streams=True)
    world.take_delta()
    world.loop.finish(request_id, "stop")
    assert world.take_final(request_id).finish_reason == "stop"
    world.loop.finish(request_id, "stop")
    world.check_idle()


def test_media_are_expected_and_known_once_they_are_encoded(make_world: Make) -> None:
    world = make_world()
    world.loop.expect_media([7, 8])
    world.loop.forget_media([8])
    assert world.loop.embeddings._expected == {7}
    assert not world.loop.is_encoded(hash_of(PICTURE))
    ask(world, PICTURE)
    assert world.loop.is_encoded(hash_of(PICTURE)) and not world.loop.is_encoded(
        hash_of(replace(PICTURE, pictures=(2,)))
    )


@pytest.mark.parametrize("can_be_made", [True, False])
def test_features_that_are_asked_for_answer_the_request_or_end_it(make_world: Make, can_be_made: bool) -> None:
    world = make_world(caching=False)
    [expected] = ask(world, PICTURE)
    world.loop.run_command(ResetCaches())
    wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    world.loop.embeddings._on_features_wanted = lambda *asked: wanted.put(asked)
    prompt = PICTURE.make_prompt()
    [item] = prompt.items
    bare = replace(prompt, items=(replace(item, features={}, has_arrays=False),))
    world.loop.submit([TokenRequest(request_id=90, prompt=bare, params=PICTURE.params, defers_tokens=True)])
    assert wanted.get(timeout=60) == (90, 0)
    world.loop.give_features(91, 0, item.features)  # of one that has ended
    failed = RequestError(ErrorCode.INVALID_REQUEST, "the picture is gone")
    world.loop.give_features(90, 0, item.features if can_be_made else failed)
    final = world.take_final(90)
    assert final.error is (None if can_be_made else failed)
    assert not can_be_made or list(final.token_ids) == expected.token_ids
    world.check_idle()


def test_tensors_are_not_staged_where_weights_cannot_be_replaced(make_world: Make) -> None:
    world = make_world()
    with pytest.raises(RequestError, match="weights cannot be replaced"):
        world.loop.run_command(DropStaged(update_id="first"))


def test_what_is_in_flight_when_a_loop_is_closed_is_handed_out(make_world: Make) -> None:
    """A step is launched ahead of each commit: the third one when the first two tokens are there."""
    gate, steps = Gate(), count()

    class Held(Faults):
        def strike(self, name: str, step: StepPlan | StepRows | None = None) -> None:
            if name == "before collect" and next(steps) == 0:
                gate.wait()

    world = make_world(Held(), is_ahead=True)
    complete = world.submit(Question(1, (), 2, SamplingParams(max_new_tokens=3)))
    cut_off = [world.submit(Question(1, (), 2, SamplingParams(max_new_tokens=60))) for _ in range(2)]
    assert gate.arrived.acquire(timeout=60)
    world.loop.stop()
    gate.arrived.release()
    gate.open()
    finals = {output.request_id: output for output in (world.take_delta() for _ in range(3))}
    assert finals[complete].finish_reason == "length" and len(finals[complete].token_ids) == 3
    for request_id in cut_off:
        error, report = finals[request_id].error, finals[request_id].report
        assert error is not None and error.code is ErrorCode.CLOSED and report is not None


def test_a_closed_loop_has_ended_and_holds_nothing(make_world: Make) -> None:
    before = {*threading.enumerate()}
    world = make_world(masks_beside=True)
    grammar = make_program(Grammar(kind="regex", source="[a-e]{99}"))
    ask(world, replace(PICTURE, grammar=grammar))
    world.loop.close()
    assert world.loop.fault is None and not world.loop._thread.is_alive()
    assert not hasattr(world.loop, "_runner") and not hasattr(world.loop, "_flight")
    assert not world.loop.is_encoded(hash_of(PICTURE))
    with pytest.raises(RequestError) as caught:
        assert world.loop.adapters.places.store is None
    assert caught.value.code is ErrorCode.CLOSED
    wait_until(
        lambda: (
            not any(
                each.name.startswith(("seesay-masks", "seesay-grammar")) for each in {*threading.enumerate()} - before
            )
        )
    )


# --- when it fails ----------------------------------------------------------------------------------------------------


def fail_once(world: World, error: Exception) -> None:
    """Let something of the loop fail that is no step, while a request runs."""
    plan_step, errors = world.scheduler.plan_step, [error]

    def fail(*given: Any) -> StepPlan:
        if errors and world.scheduler.num_running:
            raise errors.pop()
        return plan_step(*given)

    world.scheduler.plan_step = fail  # type: ignore[method-assign, assignment]


def test_an_engine_that_is_lost_says_why_and_ends(make_world: Make) -> None:
    world = make_world()
    fail_once(world, EngineLostError("the device is gone"))
    final = world.take_final(world.submit(PICTURE))
    assert "computes nothing any more (the device is gone); the model must be loaded again" in str(final.error)
    assert world.loop.fault is not None and world.loop.fault.part == "engine"
    world.loop._thread.join(60)
    assert not world.loop._thread.is_alive()
    assert "the device is gone" in str(world.take_final(world.submit(PICTURE)).error)


def test_a_loop_that_begins_anew_holds_nothing_of_before(make_world: Make) -> None:
    world = make_world()
    question = replace(PICTURE, grammar=make_program(Grammar(kind="regex", source="[a-e]{99}")))
    [expected] = ask(world, question)
    fail_once(world, ValueError("a bug"))
    final = world.take_final(world.submit(question))
    assert "see its log" in str(final.error) and world.loop.fault is None
    assert not world.loop._grammars._rules and not world.loop._requests.by_id
    world.check_idle()
    assert ask(world, question)[0].token_ids == expected.token_ids


def test_one_that_hangs_ends_its_requests_and_itself(make_world: Make) -> None:
    world = make_world()
    request_id = world.submit(Question(1, (), 2, SamplingParams(max_new_tokens=80)), streams=True)
    world.take_delta()
    world.loop._give_up(Fault("engine", "it hangs"))
    assert "it hangs; the model must be loaded again" in str(world.take_final(request_id).error)
    world.loop._thread.join(60)
    assert not world.loop._thread.is_alive()


def test_a_receiver_that_fails_has_its_requests_aborted(make_world: Make) -> None:
    world = make_world()
    take, failures = world.on_outputs, [ValueError("no room")]

    def fail(outputs: Sequence[TokenOutput]) -> None:
        if failures:
            raise failures.pop()
        take(outputs)

    world.on_outputs = fail  # type: ignore[method-assign]
    request_id = world.submit(Question(1, (), 2, SamplingParams(max_new_tokens=80)), streams=True)
    assert world.take_final(request_id).finish_reason == "abort"
    world.check_idle()
    ask(world, PICTURE)


# --- what it has beside steps -----------------------------------------------------------------------------------------


class Told:
    """A `Speculation` that proposes nothing, and notes what it is told."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def is_wanted(self, num_rows: int) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self.noted.append(name)


def test_speculation_is_told_of_requests_and_of_caches_that_are_reset(make_world: Make) -> None:
    world, told = make_world(), Told()
    world.loop.steps.speculation = told  # type: ignore[assignment]
    ask(world, replace(PICTURE, params=SamplingParams(max_new_tokens=2)))
    world.loop.run_command(ResetCaches())
    assert told.noted == ["begin", "follow", "follow", "drop", "forget"]


def test_adapters_that_are_not_in_memory_are_read_for_their_requests(tmp_path_factory: pytest.TempPathFactory) -> None:
    backbone = make_backbone("qwen2", tmp_path_factory.mktemp("adapted"))
    write_adapters(backbone.path)
    world = World(backbone, Setup(adapter_slots=1, max_live=8), Faults())
    try:
        questions = [replace(PICTURE, adapter=name, tail=tail) for tail in (1, 2) for name in ADAPTERS]
        expected = [ask(world, question)[0].token_ids for question in questions]
        adapters = world.loop.adapters
        store = adapters.places.store
        places = AdapterPlaces(store, world.scheduler, 1)
        for loaded in adapters.loaded:
            adapter = store.read(loaded.folder)
            store.drop(adapter.id)
            places.add(adapter, loaded.folder)
        adapters.places = places
        assert [one.token_ids for one in ask(world, *questions)] == expected
        assert [ask(world, question)[0].token_ids for question in questions] == expected
    finally:
        world.close()


def test_an_engine_that_sleeps_refuses_requests_until_it_wakes_up(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=config) as engine:
        arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        loop = loop_of(engine)

        def answer() -> OutputDelta:
            engine.submit_batch(parse(["go"], max_new_tokens=3, ignore_eos=True), arrived.put)
            while (delta := arrived.get(timeout=60)).finish_reason is None:
                pass
            return delta

        assert answer().finish_reason == "length"
        for level in (1, 2):
            engine.sleep(level=level)
            assert loop.status.asleep and loop.control is not None
            assert loop.control.find_refusal() is not None
            engine.wake_up()
            assert answer().finish_reason == "length" and not loop.status.asleep
