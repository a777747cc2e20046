"""One client with much to do does not keep another waiting: in the queue, at the places, and in the engine."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import HeldEngine, LiveServer, make_settings, serve, until, wait_until

from seesay.config import EngineConfig, GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError
from seesay.serving.errors import ApiError
from seesay.serving.requests.caller import Caller
from seesay.serving.requests.submission import Answering
from seesay.serving.settings import ServerSettings
from seesay.serving.traffic.admission import Gate
from seesay.serving.traffic.auth import ApiKeyMiddleware, turn_of
from seesay.serving.traffic.metrics import ServerMetrics
from seesay.serving.traffic.places import Places, Ticket
from seesay.values import EngineStats, GenerationRequest, OutputDelta

CHAT = "/v1/chat/completions"


# --- places ----------------------------------------------------------------------------------------------------------


def enter(places: Places, owner: str, num_sequences: int) -> Ticket:
    ticket = places.enter(owner, lambda: None)
    places.ask(ticket, num_sequences)
    return ticket


def test_priorities_order_the_requests_of_one_owner_and_the_oldest_is_not_kept_waiting() -> None:
    places = Places(max_requests=1)

    def ask(owner: str, priority: int = 0) -> Ticket:
        ticket = places.enter(owner, lambda: None, priority)
        places.ask(ticket, 1)
        return ticket

    inside, late, urgent, other = ask("a"), ask("a"), ask("a", -1), ask("a", 3)
    assert ask("b", 5).num_held == 1, "it waits for nobody of another owner"
    waiting = [late, urgent, other, *(ask("a", -1) for _ in range(20))]
    served: list[Ticket] = []
    places.leave(inside)
    while waiting:
        [ticket] = [ticket for ticket in waiting if ticket.num_held]
        waiting.remove(ticket)
        served.append(ticket)
        places.leave(ticket)
    assert served[0] is urgent and served.index(late) == 8 and served.index(other) == 17
    assert not places._waiting and not places._num_overtaking


def test_places_go_in_turns_and_to_the_oldest_request_of_an_owner() -> None:
    places = Places(max_requests=2)
    first, second = enter(places, "heavy", 3), enter(places, "heavy", 1)
    third, fourth = enter(places, "heavy", 1), enter(places, "heavy", 1)
    assert (first.num_held, second.num_held, third.num_held, places.num_waiting) == (3, 1, 0, 2)
    light = enter(places, "light", 1)
    assert light.num_held == 1, "nothing of it was inside"
    others = enter(places, "light", 1)
    assert others.num_held == 0 and places.num_waiting == 3
    places.leave(first)  # there are still two inside, one of them beyond the limit
    assert (third.num_held, others.num_held) == (0, 0)
    places.leave(light)
    assert others.num_held == 1, "the light client has fewest"
    places.leave(others)
    assert (third.num_held, fourth.num_held) == (1, 0)
    for ticket in (second, third, fourth):
        places.leave(ticket)
    assert places.num_waiting == 0 and not places._held and not places._waiting


def test_sequences_of_one_owner_are_limited() -> None:
    places = Places(max_requests=100, max_per_owner=3)
    first, second, other = enter(places, "a", 2), enter(places, "a", 4), enter(places, "b", 5)
    assert (first.take(), second.take(), other.take()) == (2, 1, 3)
    places.give_back(first)
    assert (first.num_held, second.num_held, second.take()) == (1, 2, 1)
    places.ask(first, 1)  # more of the older request come first
    places.give_back(second)
    assert (first.take(), second.take()) == (1, 0)


def test_places_at_random() -> None:
    """Nothing is lost, limits hold, and whoever has fewest is never passed."""
    for seed in range(30):
        rng = random.Random(seed)
        max_requests, max_per_owner = rng.randint(1, 6), rng.choice([None, 1, 3])
        places, tickets = Places(max_requests, max_per_owner), list[Ticket]()
        for _ in range(300):
            if rng.random() < 0.5:
                tickets.append(enter(places, rng.choice("aaab"), rng.randint(1, 4)))
            elif tickets:
                ticket = rng.choice(tickets)
                if ticket.num_held and rng.random() < 0.7:
                    places.give_back(ticket)
                if not ticket.num_held or rng.random() < 0.3:
                    tickets.remove(ticket)
                    places.leave(ticket)
            held = Counter[Any]()
            for ticket in tickets:
                held[ticket.owner] += ticket.num_held
            assert +held == places._held
            assert max_per_owner is None or max(held.values(), default=0) <= max_per_owner
            num_owners = len({ticket.owner for ticket in tickets})
            assert sum(ticket.is_inside for ticket in tickets) <= max_requests + max(0, num_owners - 1)
            assert all(held[ticket.owner] for ticket in tickets if ticket.num_wanted), "an owner got nothing"


# --- the gate --------------------------------------------------------------------------------------------------------


def test_a_queue_that_one_client_filled_is_open_to_others() -> None:
    gate = Gate(make_settings(max_concurrent_requests=4, max_queue=4, max_total_body_bytes=100))
    for _ in range(8):
        gate.enter("heavy")
    with pytest.raises(ApiError, match="queue is full"):
        gate.enter("heavy")
    for _ in range(4):
        gate.enter("light")
    with pytest.raises(ApiError, match="queue is full"):
        gate.enter("light")
    gate.take_bytes("heavy", 100)
    gate.take_bytes("light", 50)
    for turn in ("light", "heavy"):
        with pytest.raises(ApiError, match="more than 100 bytes together"):
            gate.take_bytes(turn, 1)
    for _ in range(8):
        gate.leave("heavy", 0)
    for _ in range(4):
        gate.leave("light", 0)
    gate.enter("other")
    gate.leave("heavy", 99)
    gate.leave("other", 0)


def test_strangers_never_get_more_than_twice_the_queue() -> None:
    gate = Gate(make_settings(max_concurrent_requests=4, max_queue=4))
    for number in range(100):
        try:
            gate.enter(f"stranger {number}")
        except ApiError:
            break
    assert gate.num_inside == 8


# --- whose turn ------------------------------------------------------------------------------------------------------


async def turn_with(keys: tuple[str, ...], headers: dict[str, str], host: str = "10.0.0.1") -> Any:
    found = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(turn_of(scope))

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": "/x", "method": "POST", "headers": raw, "client": (host, 1)}

    async def nothing(*message: Any) -> Any:
        raise AssertionError("nothing is read or answered here")

    await ApiKeyMiddleware(app, keys=keys)(scope, nothing, nothing)
    return found[0]


async def test_turns_belong_to_keys_or_addresses() -> None:
    bearer, given = {"authorization": "Bearer k"}, {"x-api-key": "k"}
    assert await turn_with(("k", "l"), bearer) == await turn_with(("k", "l"), given, host="10.0.0.2")
    assert await turn_with(("k", "l"), bearer) != await turn_with(("k", "l"), {"x-api-key": "l"})
    assert await turn_with((), bearer) == await turn_with((), {"x-api-key": "l"}) == "10.0.0.1"
    assert await turn_with((), {}, "10.0.0.1") != await turn_with((), {}, "10.0.0.2")
    assert await turn_with((), {}, "2001:db8:1:2::7") == await turn_with((), {}, "2001:db8:1:2:3::8")


# --- answers ---------------------------------------------------------------------------------------------------------


async def test_many_answers_of_one_key_enter_the_engine_a_few_at_a_time(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    answering = Answering(held, make_settings(max_sequences_per_key=3), ServerMetrics(engine))

    async def never() -> Any:
        await asyncio.Event().wait()

    requests = [GenerationRequest(prompt=f"{i}", gen_config=GenerationConfig()) for i in range(8)]
    heavy, light = Caller(turn="heavy"), Caller(turn="light")
    many = asyncio.create_task(answering.collect(requests, receive=never, caller=heavy))
    await until(lambda: held.submitted.qsize() == 3)
    one = asyncio.create_task(answering.collect([requests[0]], receive=never, caller=light))
    await until(lambda: held.submitted.qsize() == 4)
    owners = []
    while not many.done():
        while not held.submitted.empty():
            assert held.submitted.qsize() <= 4
            request_id, request, sink = held.submitted.get()
            owners.append(request.owner)
            sink(OutputDelta(request_id=request_id, text=str(request.prompt), finish_reason="stop"))
        await asyncio.sleep(0)
    assert [answer.text for answer in await many] == [str(i) for i in range(8)]
    assert (await one)[0].text == "0" and "light" in owners[:4]


@pytest.mark.parametrize("value", [0, -1])
def test_the_limit_is_checked(value: int) -> None:
    with pytest.raises(ConfigError, match="max_sequences_per_key"):
        ServerSettings(max_sequences_per_key=value)


# --- a real server ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_server(engine: AsyncEngine) -> Iterator[LiveServer]:
    """An engine with four places."""
    config = EngineConfig(max_batch_size=4, device_type="cpu")
    with (
        AsyncEngine(engine.model_path, backend_config=config) as small,
        serve(small, make_settings(api_keys=("heavy", "light"))) as server,
    ):
        yield server


def ask(server: LiveServer, key: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, **fields}
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}{CHAT}", json=body, headers=headers, timeout=120)


def count_steps(stats: EngineStats) -> int:
    return sum(count for _, count in stats.step_sizes)


def test_a_small_question_does_not_wait_for_hundreds_of_answers(small_server: LiveServer) -> None:
    """The heavy client has answers for a minute; the light one gets each of its own while these are computed."""
    results: list[httpx.Response] = []

    def ask_much(seed: int) -> None:
        results.append(ask(small_server, "heavy", n=128, max_tokens=1500, seed=seed))

    threads = [threading.Thread(target=ask_much, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    stats = small_server.state.engine.stats
    wait_until(lambda: stats().num_running == 4 and stats().num_waiting > 100)
    steps_per_answer = []
    for seed in range(5):
        num_before = count_steps(stats())
        assert ask(small_server, "light", max_tokens=4, seed=seed).status_code == 200
        steps_per_answer.append(count_steps(stats()) - num_before)

        assert not results, "the heavy client was answered already"
    small_server.state.answering.end_all(ApiError(503, "enough"))
    for thread in threads:
        thread.join(60)
    wait_until(lambda: stats().num_running == 0)
    assert [response.status_code for response in results] == [503] * 4
    assert sorted(steps_per_answer)[2] < 700, "an answer of the heavy client takes 1500 steps"
