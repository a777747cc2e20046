"""`/v1/responses`: whole, streamed as OpenAI's client parses it, and continued by id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import openai_schemas as schemas
import pytest
from live_server import MODEL, LiveServer, make_data_url, read_events, serve

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.stored.response_store import ResponseStore, StoredResponse
from seesay.values import MediaPart, Message, Modality, TextPart

PATH = "/v1/responses"


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def respond(server: LiveServer, **body: Any) -> dict[str, Any]:
    response = server.post(PATH, {"temperature": 0, "max_output_tokens": 8, **body})
    assert response.status_code == 200, response.text
    schemas.check(response.json(), schemas.RESPONSE)
    answer: dict[str, Any] = response.json()
    return answer


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


def chat(server: LiveServer, messages: Any) -> str:
    body = {"messages": messages, "temperature": 0, "max_tokens": 8}
    return str(server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"])


def test_the_same_answers_as_chat(server: LiveServer) -> None:
    url = make_data_url(seed=3)
    assert text_of(respond(server, input="the game")) == chat(server, [{"role": "user", "content": "the game"}])
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url}]}
    ]
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    expected = chat(server, [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}])
    response = respond(server, input=items, instructions="be brief")
    assert text_of(response) == expected
    assert response["usage"]["input_tokens_details"]["vision_tokens"] > 0


def test_conversations_go_on_by_id(server: LiveServer, client: openai.OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="the game", max_output_tokens=8, temperature=0, instructions="once"
    )
    second = client.responses.create(
        model=MODEL, input="and?", previous_response_id=first.id, max_output_tokens=8, temperature=0
    )
    history: list[Any] = [
        {"role": "user", "content": "the game"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "and?"},
    ]
    assert second.output_text == chat(server, history)  # instructions are not carried over
    sent_back = [{"role": "user", "content": "the game"}, first.output[0].model_dump(exclude_none=True), history[2]]
    assert text_of(respond(server, input=sent_back)) == second.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    kept_not = respond(server, input="x", store=False)
    assert kept_not["store"] is False
    assert server.post(PATH, {"input": "y", "previous_response_id": kept_not["id"]}).status_code == 400


def test_stream_as_the_client_parses_it(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="the game", max_output_tokens=8, temperature=0)
    events = list(
        client.responses.create(model=MODEL, input="the game", max_output_tokens=8, temperature=0, stream=True)
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete" and last.response.output_text == whole.output_text
    assert last.response.incomplete_details is not None
    with client.responses.stream(model=MODEL, input="the game", max_output_tokens=8, temperature=0) as stream:
        for _ in stream:
            pass


def test_completed_when_the_answer_ends(server: LiveServer, engine: AsyncEngine) -> None:
    from live_server import HeldEngine

    held = HeldEngine(engine)
    with serve(held) as other:
        import threading

        threading.Thread(target=lambda: held.answer({"text": "yes"}, {"finish_reason": "stop"})).start()
        response = other.post(PATH, {"input": "x", "stream": True})
    events = read_events(response.text)
    assert events[-1]["type"] == "response.completed"
    schemas.check(events[-1]["response"], schemas.RESPONSE)
    assert events[-1]["response"]["status"] == "completed" and events[-1]["response"]["completed_at"]


def test_logprobs_when_included(server: LiveServer) -> None:
    response = respond(server, input="x", include=["message.output_text.logprobs"], top_logprobs=2)
    entries = response["output"][0]["content"][0]["logprobs"]
    assert len(entries) == 8 and all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert response["top_logprobs"] == 2
    body = {"input": "x", "temperature": 0, "max_output_tokens": 8, "top_logprobs": 2, "stream": True}
    events = read_events(server.post(PATH, {**body, "include": ["message.output_text.logprobs"]}).text)
    streamed = [entry for event in events for entry in event.get("logprobs") or () if "delta" in event]
    [done] = [event["logprobs"] for event in events if event["type"] == "response.output_text.done"]
    assert len(streamed) == 8 and [entry["token"] for entry in streamed] == [entry["token"] for entry in done]
    assert [len(entry["top_logprobs"]) for entry in streamed] == [2] * 8


def test_fields_that_come_back(server: LiveServer) -> None:
    response = respond(server, input="x", metadata={"a": "b"}, top_p=0.5, user="me", instructions="i")
    assert (response["metadata"], response["top_p"], response["user"], response["instructions"]) == (
        {"a": "b"},
        0.5,
        "me",
        "i",
    )
    timed = server.post(PATH, {"input": "x", "max_output_tokens": 1}, headers={"x-seesay-timings": "1"}).json()
    assert timed["seesay"]["timings"]["total_s"] > 0


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([3], "input[0]"), ([{"type": "item_reference", "id": "x"}], "input[0].id"),
        ([{"type": "function_call_output", "call_id": "x", "output": "y"}], "input[0].call_id"),
        ([{"role": "user", "content": "a"}, {"role": "robot", "content": "a"}], "input[1].role"),
        ([{"role": "user", "content": "a", "odd": 1}], "input[0].odd"), ([], "input"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}], "input[0].content[0].file_id"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}], "input[0].content[0].image_url"),
        ([{"role": "user", "content": [{"type": "input_text", "text": 3}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "/etc/passwd"}]}],
         "input[0].content[0].image_url"),
        ([{"role": "user"}], "input[0].content"),
    ],
)  # fmt: skip
def test_bad_items_are_located(server: LiveServer, items: Any, param: str) -> None:
    response = server.post(PATH, {"input": items})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_items_of_stored_responses_are_named_by_their_ids(server: LiveServer) -> None:
    """What the AI SDK of Vercel sends in a loop of tools: the answer is that to the items themselves."""
    options: dict[str, Any] = {"max_output_tokens": 4, "temperature": 0}
    first = server.post(PATH, {"input": "the game", **options}).json()
    [said] = first["output"]

    def ask(*items: Any, **headers: str) -> Any:
        turns = [{"role": "user", "content": "the game"}, *items, {"role": "user", "content": "and?"}]
        return server.post(PATH, {"input": turns, **options}, headers=headers)

    reference = {"type": "item_reference", "id": said["id"]}
    named, whole, without = ask(reference).json(), ask(said).json(), ask().json()
    assert named["output"][0]["content"] == whole["output"][0]["content"]
    assert named["usage"]["input_tokens"] == whole["usage"]["input_tokens"] > without["usage"]["input_tokens"]
    for wrong in (
        {**reference, "id": said["id"] + "1"}, {**reference, "id": "msg_1"}, {**reference, "id": first["id"]},
        {**reference, "id": 3}, {**reference, "odd": 1},
    ):  # fmt: skip
        response = ask(wrong)
        assert response.status_code == 400 and response.json()["error"]["param"].startswith("input[1]."), wrong
    assert ask(reference, authorization="Bearer other").status_code == 400


def test_the_tokens_of_what_a_request_continues_are_counted_without_input(server: LiveServer) -> None:
    first = server.post(PATH, {"input": "the game", "max_output_tokens": 4, "temperature": 0}).json()
    begun = server.post("/v1/conversations", {"items": [{"role": "user", "content": "the game"}]}).json()
    empty = server.post("/v1/conversations", {}).json()

    def count(status: int = 200, **fields: Any) -> Any:
        answer = server.post(f"{PATH}/input_tokens", fields)
        assert answer.status_code == status, answer.text
        return answer.json()["input_tokens"] if status == 200 else answer.json()["error"]["param"]

    continued = count(previous_response_id=first["id"])
    assert first["usage"]["input_tokens"] < continued < count(previous_response_id=first["id"], input="and?")
    assert count(previous_response_id=first["id"], input=None, instructions="Be short.") > continued
    assert count(conversation=begun["id"]) == count(input="the game")
    assert count(400) == count(400, conversation=empty["id"]) == count(400, input=None) == "input"
    assert server.post(PATH, {"previous_response_id": first["id"]}).json()["error"]["param"] == "input"


def make_stored(size: int) -> StoredResponse:
    media = MediaPart(modality=Modality.IMAGE, source="x" * size)
    return StoredResponse(body={}, messages=(Message(role="user", parts=(media, TextPart(text="a"))),))


def put(store: ResponseStore[StoredResponse], name: str, stored: StoredResponse) -> None:
    store.put(b"", name, stored, stored.num_bytes)


def test_store_is_bounded_in_number_and_bytes() -> None:
    store: ResponseStore[StoredResponse] = ResponseStore(max_entries=3, max_bytes=100_000)
    for name in "abcd":
        put(store, name, make_stored(10))
    assert store.get(b"", "a") is None and store.get(b"", "b") is not None
    put(store, "e", make_stored(10))  # c was not used for the longest time
    assert store.get(b"", "c") is None and store.get(b"", "b") is not None
    put(store, "large", make_stored(45_000))
    assert store.get(b"", "large") is not None and store.get(b"", "d") is None
    put(store, "too large", make_stored(60_000))
    assert store.get(b"", "too large") is None
    assert not store.delete(b"", "large") and not store.delete(b"", "too large")
    put(store, "z", make_stored(10))
    assert store.delete(b"", "z") and store.get(b"", "z") is None


def test_the_store_counts_what_is_replaced_once_and_events_with_it() -> None:
    store: ResponseStore[StoredResponse] = ResponseStore(max_entries=3, max_bytes=100_000)
    put(store, "other", make_stored(10))
    for _ in range(50):
        put(store, "a", make_stored(10))
    assert store.get(b"", "other") is not None, "replacing a response takes no room"
    store.add_events(b"", "a", [b"x" * 30_000, b"y"], is_last=False)
    put(store, "a", make_stored(10))
    found = store.read_events(b"", "a", 1)
    assert found is not None and (found.events, found.is_over) == ([b"y"], False)
    put(store, "b", make_stored(30_000))  # the least recently used one goes
    assert store.get(b"", "other") is None and store.get(b"", "a") is not None
    store.add_events(b"", "b", [], is_last=True)
    found = store.read_events(b"", "b", 0)
    assert found is not None and (found.events, found.is_over) == ([], True)
    store.add_events(b"", "b", [b"z" * 2_000], is_last=False)
    assert store.read_events(b"", "a", 0) is None
    store.add_events(b"", "a", [b"z"], is_last=False)
    assert store.delete(b"", "b") and store.read_events(b"", "b", 0) is None
    put(store, "c", make_stored(45_000))
    assert store.get(b"", "c") is not None, "nothing is left of those that are gone"
