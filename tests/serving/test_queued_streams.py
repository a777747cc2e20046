"""Streams whose request waits: for a place, or in the engine."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from live_server import HeldEngine, make_settings, serve, wait_until

from seesay.config import GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ErrorCode, RequestError
from seesay.values import GenerationRequest, OutputDelta

MESSAGES = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "hi"},
    "/generate": {"prompt": "hi"},
    "/api/chat": {"messages": MESSAGES},
}


class Queued(HeldEngine):
    """Has prepared what it was given, and computes nothing of it. What it is given from now on, it does not prepare."""

    prepares = True

    def has_admitted(self, request_id: int) -> bool:
        return self.prepares


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known to wait for its turn alone waits for its headers."""
    monkeypatch.setattr("seesay.serving.http.streaming.EventStream.headers_after_s", 300.0)


@pytest.mark.parametrize("route", ROUTES)
def test_one_that_is_prepared_has_its_headers(engine: AsyncEngine, patient: None, route: str) -> None:
    held = Queued(engine)
    body = {**ROUTES[route], "model": "m", "stream": True}
    with (
        serve(held, make_settings(any_model_name=True)) as server,
        httpx.stream("POST", server.url + route, json=body, timeout=60) as answer,
    ):
        assert answer.status_code == 200
        held.answer({"text": "done", "finish_reason": "stop"})
        assert "done" in "".join(answer.iter_text())


def test_one_that_waits_for_a_place_has_its_headers(engine: AsyncEngine, patient: None) -> None:
    held = Queued(engine)
    route, body = "/v1/chat/completions", {**ROUTES["/v1/chat/completions"], "stream": True}
    with serve(held, make_settings(max_concurrent_requests=1)) as server:
        first = threading.Thread(target=lambda: server.post(route, body))
        first.start()
        wait_until(lambda: not held.submitted.empty())
        with httpx.stream("POST", server.url + route, json=body, timeout=60) as answer:
            assert answer.status_code == 200 and server.state.answering.num_waiting == 1
            held.answer({"text": "one", "finish_reason": "stop"})
            held.answer({"text": "two", "finish_reason": "stop"})
            assert "two" in "".join(answer.iter_text())
        first.join(60)


def test_one_that_is_being_prepared_has_none_yet(engine: AsyncEngine) -> None:
    """Its error has a status of its own."""
    held = Queued(engine)
    held.prepares = False
    with serve(held) as server:
        found: list[httpx.Response] = []
        body = {**ROUTES["/v1/chat/completions"], "stream": True}
        asking = threading.Thread(target=lambda: found.append(server.post("/v1/chat/completions", body)))
        asking.start()
        wait_until(lambda: not held.submitted.empty())
        asking.join(0.3)
        held.answer({"finish_reason": "error", "error": RequestError(ErrorCode.INVALID_REQUEST, "too long")})
        asking.join(60)
    assert found[0].status_code == 400


def test_a_real_engine_says_what_it_has_prepared(engine: AsyncEngine) -> None:
    first: list[bool] = []
    done = threading.Event()

    def on_output(delta: OutputDelta) -> None:
        first.append(engine.has_admitted(delta.request_id))
        if delta.finish_reason is not None:
            done.set()

    requests = [GenerationRequest(prompt="hi", gen_config=GenerationConfig(max_new_tokens=20))]
    (request_id,) = engine.submit_batch(requests, on_output)
    assert done.wait(60)
    assert first[0] and not engine.has_admitted(request_id)
