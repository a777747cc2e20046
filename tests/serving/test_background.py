"""Responses in the background: looked at until they are there, streamed, cancelled, and the items that they answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from live_server import MODEL, HeldEngine, LiveServer, make_data_url, serve
from waiting import wait_until

from seesay.engine.front.engine import AsyncEngine
from seesay.values import OutputDelta

PATH = "/v1/responses"
LONG = {"text": {"format": {"type": "regex", "regex": "[ab]{600}"}}}


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def is_idle(server: LiveServer) -> bool:
    return bool(httpx.get(f"{server.url}/load").json()["server_load"] == 0)


def test_a_response_is_there_later(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "input": "the game", "temperature": 0, "max_output_tokens": 8}
    queued = client.responses.create(background=True, **options)
    assert queued.status == "queued" and queued.background and not queued.output
    wait_until(lambda: client.responses.retrieve(queued.id).status not in ("queued", "in_progress"))
    found = client.responses.retrieve(queued.id)
    at_once = client.responses.create(**options)
    assert found.output_text == at_once.output_text and found.status == at_once.status
    assert found.usage is not None and found.background
    following = client.responses.create(previous_response_id=found.id, **options)
    assert following.output_text == client.responses.create(previous_response_id=at_once.id, **options).output_text


def test_a_response_that_has_begun_says_so(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    with serve(held) as server:
        body = {"model": MODEL, "input": "the game", "background": True}
        url = f"{server.url}{PATH}/{server.post(PATH, body).json()['id']}"
        request_id, request, on_output = held.submitted.get(timeout=60)
        assert httpx.get(url).json()["status"] == "queued" and request.streams
        on_output(OutputDelta(request_id=request_id, text="a", token_ids=(5,)))
        wait_until(lambda: httpx.get(url).json()["status"] == "in_progress")
        on_output(OutputDelta(request_id=request_id, text="b", token_ids=(6,), finish_reason="stop"))
        wait_until(lambda: httpx.get(url).json()["status"] == "completed")
        assert httpx.get(url).json()["output"][0]["content"][0]["text"] == "ab"


def test_a_running_response_is_cancelled(server: LiveServer, client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "input": "the game", "max_output_tokens": 400}
    body["extra_body"] = LONG
    running = client.responses.create(background=True, **body)
    with pytest.raises(openai.BadRequestError, match=r"previous_response_id: that response has no answer"):
        client.responses.create(model=MODEL, input="x", previous_response_id=running.id)
    assert client.responses.cancel(running.id).status == "cancelled"
    wait_until(lambda: is_idle(server))
    assert client.responses.retrieve(running.id).status == "cancelled"
    assert client.responses.cancel(running.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match=r"only responses with background=true"):
        client.responses.cancel(client.responses.create(model=MODEL, input="x", max_output_tokens=1).id)


def test_a_response_that_is_deleted_is_not_computed_on(server: LiveServer, client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "input": "the game", "max_output_tokens": 400}
    running = client.responses.create(background=True, extra_body=LONG, **body)
    client.responses.delete(running.id)
    wait_until(lambda: is_idle(server))
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(running.id)


def test_a_failure_is_told(client: openai.OpenAI) -> None:
    failing = client.responses.create(model=MODEL, input="a " * 600, background=True)
    wait_until(lambda: client.responses.retrieve(failing.id).status == "failed")
    error = client.responses.retrieve(failing.id).error
    assert error is not None and error.code == "invalid_prompt" and "session_len" in error.message


def test_what_cannot_be_in_the_background(server: LiveServer) -> None:
    response = server.post(PATH, {"input": "x", "background": True, "store": False})
    assert response.status_code == 400 and "needs store" in response.text


def test_a_stream_is_left_and_resumed(server: LiveServer, client: openai.OpenAI) -> None:
    """The response is computed to its end, and its events can be read from any number on, then and later."""
    options: dict[str, Any] = {"model": MODEL, "input": "the game", "temperature": 0, "max_output_tokens": 300}
    options["extra_body"] = LONG
    with client.responses.create(background=True, stream=True, **options) as stream:
        first = [next(stream) for _ in range(4)]
        assert [event.type for event in first[:3]] == ["response.created", "response.queued", "response.in_progress"]
    begun: Any = first[0]
    rest = list(client.responses.retrieve(begun.response.id, stream=True, starting_after=first[-1].sequence_number))
    numbers = [event.sequence_number for event in (*first, *rest)]
    assert numbers == list(range(len(numbers)))
    last: Any = rest[-1]
    found = client.responses.retrieve(begun.response.id)
    assert last.type == "response.incomplete" and last.response.output == found.output
    text = "".join(event.delta for event in rest if event.type == "response.output_text.delta")
    assert found.output_text.endswith(text) and len(text) > 100
    again = list(client.responses.retrieve(begun.response.id, stream=True))
    assert [event.to_dict(warnings=False) for event in again] == [
        event.to_dict(warnings=False) for event in (*first, *rest)
    ]
    assert list(client.responses.retrieve(begun.response.id, stream=True, starting_after=10**6)) == []
    at_once = list(client.responses.create(stream=True, **options))
    kinds = list(dict.fromkeys(event.type for event in again))
    kinds.remove("response.queued")
    assert list(dict.fromkeys(event.type for event in at_once)) == kinds


def test_followers_of_a_stream_see_its_end(server: LiveServer, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "max_output_tokens": 400, "background": True, "stream": True}
    with client.responses.create(input="the game", extra_body=LONG, **options) as stream:
        begun: Any = next(stream)
        assert client.responses.cancel(begun.response.id).status == "cancelled"
        kinds = [event.type for event in stream]
    assert "response.completed" not in kinds and "response.incomplete" not in kinds
    wait_until(lambda: is_idle(server))
    with client.responses.create(input="the game", extra_body=LONG, **options) as stream:
        begun = next(stream)
        client.responses.delete(begun.response.id)
        list(stream)
    events = list(client.responses.create(input="a " * 600, **options))
    assert events[-1].type == "error" and "session_len" in events[-1].message
    created: Any = events[0]
    assert client.responses.retrieve(created.response.id).status == "failed"
    wait_until(lambda: is_idle(server))


def test_what_has_no_stream_says_so(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="x", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="was not created with background=true and stream=true"):
        client.responses.retrieve(response.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="starting_after requires stream"):
        client.responses.retrieve(response.id, extra_query={"starting_after": 3})
    with pytest.raises(openai.BadRequestError, match="unknown query parameter: 'colour'"):
        client.responses.retrieve(response.id, extra_query={"colour": 3})


def test_input_items(client: openai.OpenAI) -> None:
    url = make_data_url(seed=3)
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    asked = {
        "role": "user",
        "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url}],
    }
    items: Any = [asked, call, result, {"role": "user", "content": "and?"}]
    response = client.responses.create(model=MODEL, input=items, max_output_tokens=2)
    pages = client.responses.input_items.list(response.id, limit=2, order="asc")
    found: Any = [item.model_dump(exclude_unset=True) for item in pages]
    assert [item["type"] for item in found] == ["message", "function_call", "function_call_output", "message"]
    assert found[0]["content"][1]["image_url"] == url and found[2]["output"] == "42"
    newest: Any = client.responses.input_items.list(response.id, limit=1).data
    assert [item.id for item in newest] == [found[-1]["id"]] and newest[0].content[0].text == "and?"
    with pytest.raises(openai.BadRequestError, match="after: there is no item"):
        client.responses.input_items.list(response.id, after="item_none")
