"""Slots, deadlines, disconnects and shutdown of `Answering`, with an engine that answers by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from live_server import HeldEngine, make_settings, until, wait_until
from starlette.testclient import TestClient

from seesay.config import GenerationConfig
from seesay.engine.front.choices import choices_of
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ErrorCode, RequestError
from seesay.serving.app import create_app
from seesay.serving.errors import ApiError
from seesay.serving.requests.caller import Caller
from seesay.serving.requests.submission import Answering, ClientGoneError, Tally, unless_gone
from seesay.serving.traffic.admission import shutting_down
from seesay.serving.traffic.metrics import ServerMetrics
from seesay.values import GenerationRequest, OutputDelta, StageTimings, Usage

REQUEST = GenerationRequest(prompt="x", gen_config=GenerationConfig(random_seed=5))
OTHER = replace(REQUEST, prompt="y")
MakeAnswering = Callable[..., Answering]


@pytest.fixture
def held(engine: AsyncEngine) -> HeldEngine:
    return HeldEngine(engine)


@pytest.fixture
def make(held: HeldEngine) -> MakeAnswering:
    return lambda **options: Answering(held, make_settings(**options), ServerMetrics(held))


async def never() -> Any:
    await asyncio.Event().wait()


async def gone() -> Any:
    return {"type": "http.disconnect"}


async def started(held: HeldEngine, task: asyncio.Task[Any]) -> None:
    while held.submitted.empty() and not task.done():
        await asyncio.sleep(0)


async def test_deltas_come_in_order_with_their_index(held: HeldEngine, make: MakeAnswering) -> None:
    answering = make()
    task = asyncio.create_task(answering.collect([REQUEST, OTHER], receive=never))
    await started(held, task)
    (first, _, sink), (second, _, _) = held.submitted.get(), held.submitted.get()
    sink(OutputDelta(request_id=second, text="b", token_ids=(2,)))
    sink(OutputDelta(request_id=first, text="a", token_ids=(1,), finish_reason="stop"))
    sink(OutputDelta(request_id=second, text="c", token_ids=(3,), finish_reason="length"))
    answers = await task
    assert [(a.text, a.token_ids, a.finish_reason) for a in answers] == [("a", [1], "stop"), ("bc", [2, 3], "length")]
    assert answering.num_running == 0 and held.aborted.empty()


async def test_choices_are_asked_for_in_one_call(held: HeldEngine, make: MakeAnswering) -> None:
    """With the same prompt, so that the engine prepares and computes it once."""
    task = asyncio.create_task(make().collect([*choices_of(replace(REQUEST, streams=False), 3), OTHER], receive=never))
    await started(held, task)
    asked = [held.submitted.get() for _ in range(4)]
    assert held.submitted.empty() and len({id(request.prompt) for _, request, _ in asked[:3]}) == 1
    for (request_id, _, sink), text in zip(asked, "abcd", strict=True):
        sink(OutputDelta(request_id=request_id, text=text, finish_reason="stop"))
    assert [answer.text for answer in await task] == list("abcd")


async def test_choices_of_a_prompt_that_fails_end_together(held: HeldEngine, make: MakeAnswering) -> None:
    task = asyncio.create_task(make().collect(choices_of(REQUEST, 3), receive=never))
    await started(held, task)
    held.answer({"finish_reason": "error", "error": RequestError(ErrorCode.INVALID_MEDIA, "bad")})
    with pytest.raises(ApiError, match="bad"):
        await task
    assert {held.aborted.get(timeout=60) for _ in range(2)} == {held.submitted.get()[0] for _ in range(2)}


async def test_one_failure_ends_the_others(held: HeldEngine, make: MakeAnswering) -> None:
    task = asyncio.create_task(make().collect([REQUEST, OTHER], receive=never))
    await started(held, task)
    held.answer({"finish_reason": "error", "error": RequestError(ErrorCode.CONTEXT_TOO_LONG, "too long", "messages")})
    with pytest.raises(ApiError) as caught:
        await task
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert held.aborted.get(timeout=60) == held.submitted.get()[0]


async def test_failure_of_ours_names_the_request(held: HeldEngine, make: MakeAnswering) -> None:
    task = asyncio.create_task(make().collect([REQUEST], receive=never, caller=Caller(request_id="req_1")))
    await started(held, task)
    held.answer({"finish_reason": "error", "error": RequestError(ErrorCode.INTERNAL, "oops")})
    with pytest.raises(ApiError, match="req_1") as caught:
        await task
    assert caught.value.status_code == 500


@pytest.mark.parametrize(
    ("code", "status"), [(ErrorCode.OUT_OF_MEMORY, 503), (ErrorCode.CLOSED, 503), (ErrorCode.MEDIA_TOO_LARGE, 400)]
)
async def test_status_of_errors(held: HeldEngine, make: MakeAnswering, code: ErrorCode, status: int) -> None:
    task = asyncio.create_task(make().collect([REQUEST], receive=never))
    await started(held, task)
    held.answer({"finish_reason": "error", "error": RequestError(code, "no")})
    with pytest.raises(ApiError) as caught:
        await task
    assert caught.value.status_code == status
    assert ("Retry-After" in (caught.value.headers or {})) == (status == 503)


async def test_client_that_leaves_aborts(held: HeldEngine, make: MakeAnswering) -> None:
    answering = make()

    async def leave() -> Any:
        while held.submitted.qsize() < 2:
            await asyncio.sleep(0)
        return await gone()

    with pytest.raises(ClientGoneError):
        await answering.collect([REQUEST, OTHER], receive=leave)
    ids = [held.submitted.get(timeout=60)[0] for _ in range(2)]
    assert [held.aborted.get(timeout=60) for _ in range(2)] == ids
    assert answering.num_running == 0


async def test_a_client_that_leaves_ends_the_work_and_nothing_else() -> None:
    ended = asyncio.Event()

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "unreachable"

    with pytest.raises(ClientGoneError):
        await unless_gone(gone, work())
    assert ended.is_set()
    await asyncio.sleep(0.01)  # a cancellation that came late would be raised here
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_work_that_is_done_when_the_client_leaves_is_done() -> None:
    has_left = asyncio.Event()

    async def leave() -> Any:
        await has_left.wait()
        return await gone()

    async def work() -> str:
        has_left.set()
        await asyncio.sleep(0)  # the watcher has ended then, and is about to say so
        return "done"

    assert await unless_gone(leave, work()) == "done"
    await asyncio.sleep(0.01)


async def test_a_task_that_is_cancelled_is_cancelled_although_its_client_leaves() -> None:
    has_left = asyncio.Event()

    async def leave() -> Any:
        await has_left.wait()
        return await gone()

    async def work() -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(unless_gone(leave, work()))
    await asyncio.sleep(0.01)
    has_left.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other = asyncio.create_task(unless_gone(never, work()))
    await asyncio.sleep(0.01)
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_reader_that_stops_aborts(held: HeldEngine, make: MakeAnswering) -> None:
    async def read_one() -> None:
        async with aclosing(make().deltas([REQUEST])) as deltas:
            async for _ in deltas:
                return

    task = asyncio.create_task(read_one())
    await started(held, task)
    request_id = held.answer({"text": "a"})
    await task
    assert held.aborted.get(timeout=60) == request_id


async def test_too_slow_an_answer_is_504(held: HeldEngine, make: MakeAnswering) -> None:
    with pytest.raises(ApiError) as caught:
        await make(request_timeout_s=0.05).collect([REQUEST], receive=never)
    assert caught.value.status_code == 504
    assert held.aborted.get(timeout=60) == held.submitted.get()[0]


async def test_shutdown_ends_running_and_waiting(held: HeldEngine, make: MakeAnswering) -> None:
    answering = make(max_concurrent_requests=1)
    tasks = [asyncio.create_task(answering.collect([REQUEST], receive=never)) for _ in range(3)]
    await until(lambda: answering.num_waiting == 2)
    answering.end_all(shutting_down())
    for task in tasks:
        with pytest.raises(ApiError) as caught:
            await task
        assert caught.value.status_code == 503
    assert answering.num_waiting == answering.num_running == 0


async def test_slots_go_round(held: HeldEngine, make: MakeAnswering) -> None:
    """However requests end, in a slot or before it, nothing of `max_concurrent_requests` is lost."""
    answering = make(max_concurrent_requests=2, request_timeout_s=120)
    tasks = [asyncio.create_task(answering.collect([REQUEST], receive=never)) for _ in range(7)]
    await until(lambda: held.submitted.qsize() == 2 and answering.num_waiting == 5)
    tasks[0].cancel()  # in a slot
    tasks[4].cancel()  # waiting
    await until(lambda: tasks[0].done() and tasks[4].done())
    with suppress(asyncio.CancelledError):
        await tasks[0]
    num_answered = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        while not held.submitted.empty():
            held.answer({"text": "a", "finish_reason": "stop"})
            num_answered += 1
    assert num_answered == 6 and sum(task.cancelled() for task in tasks) == 2
    last = [asyncio.create_task(answering.collect([REQUEST], receive=never)) for _ in range(2)]
    await until(lambda: held.submitted.qsize() == 2)
    for _ in last:
        held.answer({"finish_reason": "stop"})
    await asyncio.gather(*last)


async def read_texts(answering: Answering) -> list[str]:
    texts: list[str] = []
    try:
        async with aclosing(answering.deltas([REQUEST])) as deltas:
            async for _, delta in deltas:
                texts.append(delta.text)
    except ApiError as error:
        texts.append(error.message)
    return texts


async def test_deltas_that_wait_for_the_loop_are_joined(held: HeldEngine, make: MakeAnswering) -> None:
    task = asyncio.create_task(read_texts(make()))
    await started(held, task)
    request_id, _, sink = held.submitted.get()
    for i in range(1000):  # the loop has no turn meanwhile
        sink(OutputDelta(request_id=request_id, text=str(i % 10), finish_reason="stop" if i == 999 else None))
    assert await task == ["0123456789" * 100]


async def test_text_before_an_error_is_handed_out(held: HeldEngine, make: MakeAnswering) -> None:
    task = asyncio.create_task(read_texts(make()))
    await started(held, task)
    request_id, _, sink = held.submitted.get()
    for text in "ab":
        sink(OutputDelta(request_id=request_id, text=text))
    error = RequestError(ErrorCode.INTERNAL, "it broke")
    sink(OutputDelta(request_id=request_id, finish_reason="error", error=error))
    [text, message] = await task
    assert text == "ab" and "it broke" in message


async def test_deltas_from_another_thread_arrive_whole(held: HeldEngine, make: MakeAnswering) -> None:
    task = asyncio.create_task(read_texts(make()))
    await started(held, task)
    request_id, _, sink = held.submitted.get()

    def send() -> None:
        for i in range(1000):
            sink(OutputDelta(request_id=request_id, text=str(i % 10), finish_reason="stop" if i == 999 else None))

    await asyncio.to_thread(send)
    assert "".join(await task) == "0123456789" * 100


def test_event_loops_share_the_slots(held: HeldEngine, make: MakeAnswering) -> None:
    """A slot that falls free in one event loop wakes the request that waits for it in another."""
    answering = make(max_concurrent_requests=1, request_timeout_s=60)
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(asyncio.run, answering.collect([REQUEST], receive=never)) for _ in range(3)]

        def are_left(num: int) -> bool:
            return answering.num_waiting == num and not held.submitted.empty()

        for num_left in (2, 1, 0):
            wait_until(partial(are_left, num_left))
            assert held.submitted.qsize() == 1
            held.answer({"text": "a", "finish_reason": "stop"})
        assert [answer.result()[0].text for answer in answers] == ["a"] * 3


def test_the_shutdown_of_one_event_loop_ends_what_waits_in_another(held: HeldEngine, make: MakeAnswering) -> None:
    answering = make(max_concurrent_requests=1, request_timeout_s=60)
    with ThreadPoolExecutor(2) as threads:
        tasks = [threads.submit(asyncio.run, answering.collect([REQUEST], receive=never)) for _ in range(2)]
        wait_until(lambda: answering.num_waiting == 1)
        answering.end_all(shutting_down())
        for task in tasks:
            with pytest.raises(ApiError, match="shutting down"):
                task.result(timeout=60)


def test_choices_have_their_own_seeds() -> None:
    assert [request.gen_config.random_seed for request in choices_of(REQUEST, 3)] == [5, 6, 7]
    unseeded = GenerationRequest(prompt="x", gen_config=GenerationConfig())
    assert choices_of(unseeded, 2) == [unseeded] * 2


def test_tally_counts_each_prompt_once() -> None:
    tally = Tally(num_per_prompt=2)
    for index, total_s in enumerate((1.0, 3.0, 2.0, 1.0)):
        usage = Usage(prompt_tokens=10, completion_tokens=2, cached_tokens=4, media_tokens=3)
        timings = StageTimings(total_s=total_s)
        tally.add(index, OutputDelta(request_id=1, finish_reason="stop", usage=usage, timings=timings))
    assert (tally.prompt_tokens, tally.completion_tokens, tally.cached_tokens, tally.media_tokens) == (20, 8, 8, 6)
    assert tally.timings is not None and tally.timings.total_s == 3.0


def test_iterators_are_what_routes_get(make: MakeAnswering) -> None:
    assert isinstance(make().deltas([REQUEST]), AsyncIterator)


def test_a_client_that_opens_a_second_event_loop_is_answered(engine: AsyncEngine) -> None:
    """Starlette's client runs each request in an event loop of its own."""
    settings = make_settings(request_timeout_s=120.0)
    client = TestClient(create_app(engine, settings))
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}
    texts = [client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"] for _ in range(3)]
    assert texts[0] == texts[1] == texts[2]
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        assert stream.read().endswith(b"data: [DONE]\n\n")
    turn = {"prompt": "one", "session_id": 1, "interactive_mode": True, "request_output_len": 3, "ignore_eos": True}
    assert [client.post("/v1/chat/interactive", json=turn).json()["tokens"] for _ in range(3)] == [3, 3, 3]
    with ThreadPoolExecutor(4) as threads:  # several event loops at once
        answers = list(threads.map(lambda _: client.post("/v1/chat/completions", json=body).json(), range(8)))
    assert [answer["choices"][0]["message"] for answer in answers] == [texts[0]] * 8
