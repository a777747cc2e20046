"""`/v1/messages` over a live server, with Anthropic's own client and event by event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from live_server import MODEL, LiveServer, make_data_url, make_settings, read_events, serve

from seesay.engine.front.engine import AsyncEngine

PATH = "/v1/messages"
HI: list[Any] = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0}
# Newer versions of the client have no argument for it.
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "extra_body": {"temperature": 0}}


def picture(seed: int = 0) -> dict[str, Any]:
    data = make_data_url(seed=seed).partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def first_text(message: anthropic.types.Message) -> str:
    block = message.content[0]
    assert block.type == "text"
    return block.text


@pytest.fixture
def client(server: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


# --- the official client ---------------------------------------------------------------------------------------------


def test_create(client: anthropic.Anthropic) -> None:
    message = client.messages.create(messages=HI, **GREEDY)
    assert message.type == "message" and message.role == "assistant" and message.model == MODEL
    assert message.id.startswith("msg_")
    assert message._request_id is not None
    assert [block.type for block in message.content] in ([], ["text"])
    assert message.usage.output_tokens == 12 and message.stop_reason == "max_tokens"


def test_streamed_is_the_same(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(messages=HI, **GREEDY)
    with client.messages.stream(messages=HI, **GREEDY) as stream:
        texts = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(texts) == first_text(message) == first_text(whole)
    assert message.stop_reason == whole.stop_reason
    total = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert total == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert message.usage.output_tokens == 12


async def test_async(server: LiveServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        whole = await client.messages.create(messages=HI, **GREEDY)
        async with client.messages.stream(messages=HI, **GREEDY) as stream:
            streamed = await stream.get_final_text()
    assert streamed == first_text(whole)


def test_picture_url_data_and_base64_are_the_same(client: anthropic.Anthropic) -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": make_data_url(seed=3)}}
    questions: list[list[Any]]
    questions = [[{"role": "user", "content": [part, text("what?")]}] for part in (picture(3), by_url)]
    answers = [client.messages.create(messages=question, **GREEDY) for question in questions]
    assert answers[0].content == answers[1].content
    assert (answers[1].usage.cache_read_input_tokens or 0) > 0


def test_count_tokens(client: anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": [picture(), text("what?")]}]
    count = client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
    usage = client.messages.create(messages=messages, system="Be brief.", **GREEDY).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert count.input_tokens > client.messages.count_tokens(model=MODEL, messages=HI).input_tokens


def test_system_as_text_and_blocks(client: anthropic.Anthropic) -> None:
    cached: list[Any] = [{**text("Be brief."), "cache_control": {"type": "ephemeral"}}]
    counts = [
        client.messages.count_tokens(model=MODEL, messages=HI, system=system).input_tokens
        for system in ("Be brief.", cached)
    ]
    assert counts[0] == counts[1]


def test_turns_of_one_role_are_one(client: anthropic.Anthropic) -> None:
    apart: list[Any] = [{"role": "user", "content": "one "}, {"role": "user", "content": "two"}]
    together: list[Any] = [{"role": "user", "content": [text("one "), text("two")]}]
    counts = {client.messages.count_tokens(model=MODEL, messages=m).input_tokens for m in (apart, together)}
    assert len(counts) == 1


def test_the_answer_goes_on_where_the_last_turn_ends(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(messages=HI, **GREEDY).content[0].text
    begun = whole[: len(whole) // 2].rstrip()
    prefilled = [*HI, {"role": "assistant", "content": begun}]
    ended = [*HI, {"role": "assistant", "content": begun}, {"role": "user", "content": "x"}]
    count, longer = (client.messages.count_tokens(model=MODEL, messages=m).input_tokens for m in (prefilled, ended))
    assert count < longer
    assert client.messages.create(messages=prefilled, **GREEDY).usage.output_tokens > 0
    with pytest.raises(anthropic.BadRequestError, match="whitespace"):
        client.messages.create(messages=[*HI, {"role": "assistant", "content": "well "}], **GREEDY)


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(messages=HI, **GREEDY).content[0].text
    stop = whole[3:6]
    message = client.messages.create(messages=HI, stop_sequences=["\x01", stop], **GREEDY)
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert "".join(block.text for block in message.content) == whole[: whole.index(stop)]


def test_a_full_context_has_a_reason_of_its_own(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model=MODEL, messages=HI).input_tokens
    filler: list[Any] = [{"role": "user", "content": "hi " * ((512 - count) // 4)}]
    message = client.messages.create(**{**GREEDY, "max_tokens": 512}, messages=filler)
    assert message.stop_reason in ("model_context_window_exceeded", "end_turn")


def test_a_limit_above_the_context_means_as_many_as_fit(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**GREEDY, "max_tokens": 64_000}, messages=HI, timeout=60)
    assert message.stop_reason in ("model_context_window_exceeded", "end_turn")


def test_tool_results_may_hold_pictures(client: anthropic.Anthropic) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sky"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [picture(), text("seen")]}
    plain = {**result, "content": "seen"}
    for said in ([text("Let me look.")], []):
        counts = []
        for answer in (result, plain):
            asked = {"role": "assistant", "content": [*said, call]}
            messages: list[Any] = [*HI, asked, {"role": "user", "content": [answer]}]
            counts.append(client.messages.count_tokens(model=MODEL, messages=messages).input_tokens)
        assert counts[0] > counts[1]


def test_redacted_thoughts_are_left_out(server: LiveServer) -> None:
    redacted = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4a"}
    said: list[Any] = [{"role": "assistant", "content": [text("yes")]}, *HI]

    def count(content: list[Any], *more: Any) -> Any:
        turns = [*HI, {"role": "assistant", "content": content}, *more]
        answer = server.post(f"{PATH}/count_tokens", {"messages": turns})
        return answer.json().get("input_tokens") or answer.json()["error"]["message"]

    assert count([redacted, text("yes")], *HI) == count([text("yes")], *HI) > count([redacted], *HI)
    assert count([redacted], *said) == count([text("yes")], *HI)
    answer = server.post(PATH, {**BODY, "messages": [*HI, {"role": "assistant", "content": [redacted, text("y")]}]})
    assert answer.status_code == 200 and "x-seesay-ignored" not in answer.headers
    assert "[1].content[0].data must be a string, got None" in count([{"type": "redacted_thinking"}], *HI)
    alone = server.post(PATH, {**BODY, "messages": [{"role": "assistant", "content": [redacted]}]})
    assert alone.status_code == 400 and "messages must have more than redacted thoughts" in alone.text


def test_tools_that_answer_their_calls(client: anthropic.Anthropic) -> None:
    """Several at once, over turns of one role that follow each other, and again later under the same id."""
    messages: list[Any] = tools(
        ("assistant", call("a")), ("assistant", call("b")), ("user", result("b")), ("user", result("a")),
        ("assistant", call("a")), ("user", result("a")),
    )["messages"]  # fmt: skip
    assert client.messages.count_tokens(model=MODEL, messages=messages).input_tokens > 0


# --- byte by byte ----------------------------------------------------------------------------------------------------


def test_events(server: LiveServer) -> None:
    response = server.post(PATH, {**BODY, "messages": HI, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    names = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    events = read_events(response.text)
    assert names == [event["type"] for event in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    start = events[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["output_tokens"] == 0
    assert events[-2]["usage"]["output_tokens"] == 12
    assert "[DONE]" not in response.text


# --- errors ----------------------------------------------------------------------------------------------------------


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def call(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}}


def result(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "x"}


def tools(*turns: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"messages": [*HI, *({"role": role, "content": [block]} for role, block in turns)]}


def image(**source: str) -> dict[str, Any]:
    return user({"type": "image", "source": source})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no max_tokens": ({"max_tokens": None}, "max_tokens"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens"),
    "tools": ({"tools": [{"name": "f", "input_schema": {}}]}, "tools"),
    "tool_choice": ({"tool_choice": {"type": "any"}}, "tool_choice"),
    "thinking": ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    "unknown field": ({"no_such_field": 1}, "no_such_field"),
    "temperature": ({"temperature": 3}, "temperature"),
    "empty stop": ({"stop_sequences": [""]}, "stop_sequences"),
    "no messages": ({"messages": []}, "messages"),
    "system role": ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    "empty content": ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
    "empty text": (user(text("")), "content[0].text"),
    "document": (user({"type": "document"}), "content[0].source"),
    "search result": (user({"type": "search_result"}), "search_result"),
    "unknown block": (user({"type": "zoo"}), "zoo"),
    "no type": (user(3), "content[0]"),
    "assistant's picture": ({"messages": [*HI, {"role": "assistant", "content": [picture()]}]}, "[1].content[0]"),
    "picture type": (image(type="base64", media_type="image/tiff", data="x"), "media_type"),
    "broken picture": (image(type="base64", media_type="image/png", data="eHg="), ""),
    "not the type it is said to be": (
        image(type="base64", media_type="image/jpeg", data=picture()["source"]["data"]),
        "messages[0].content[0].source.media_type is image/jpeg, but the data is a picture of type image/png",
    ),
    "no picture": (image(type="base64", media_type="image/png", data="aGVsbG8gd29ybGQ="), "source.data is not a JPEG"),
    "no base64": (image(type="base64", media_type="image/png", data="*" * 40), "source.data is not base64"),
    "a result that nobody asked for": (
        user({"type": "tool_result", "tool_use_id": "t", "content": "x"}),
        "messages[0].content[0].tool_use_id: there is no tool_use 't' in the preceding assistant turn",
    ),
    "a result of another call": (
        tools(("assistant", call("t")), ("user", result("t2"))),
        "messages[2].content[0].tool_use_id: there is no tool_use 't2'",
    ),
    "a result of an earlier turn": (
        tools(("assistant", call("t")), ("user", result("t")), ("assistant", text("x")), ("user", result("t"))),
        "messages[4].content[0].tool_use_id: there is no tool_use 't'",
    ),
    "two results of a call": (
        tools(("assistant", call("t")), ("user", result("t")), ("user", result("t"))),
        "messages[3].content[0].tool_use_id: 't' already has a tool_result",
    ),
    "a call without a result": (
        tools(("assistant", call("t")), ("user", text("x")), ("assistant", text("y"))),
        "messages[1].content[0]: tool_use 't' has no tool_result in the next turn",
    ),
    "a call at the end": (tools(("assistant", call("t"))), "messages[1].content[0]: tool_use 't' has no tool_result"),
    "two calls of one id": (
        tools(("assistant", call("t")), ("assistant", call("t")), ("user", result("t"))),
        "messages[2].content[0].id: 't' is also the id of another tool_use",
    ),
    "a call without an id": (
        tools(("assistant", {"type": "tool_use", "name": "f", "input": {}})),
        "messages[1].content[0].id must be a non-empty string",
    ),
    "file of the server": (image(type="url", url="file:///etc/passwd"), "allowed-local-media-path"),
    "picture by file id": (image(type="file", file_id="f"), "source.type"),
    "half a surrogate": ({"messages": [{"role": "user", "content": "\ud800"}]}, "not valid JSON"),
    "system picture": ({"system": [picture()]}, "system[0]"),
    "too long": (user(text("word " * 2000)), "512"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_requests_are_named(http: httpx.AsyncClient, name: str) -> None:
    change, expected = BAD[name]
    body = {key: value for key, value in {**BODY, "messages": HI, **change}.items() if value is not None}
    response = await http.post(PATH, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert expected in error["error"]["message"]


async def test_other_errors_have_the_envelope_too(http: httpx.AsyncClient) -> None:
    missing = await http.post(PATH, json={**BODY, "model": "nope", "messages": HI})
    assert missing.status_code == 404 and missing.json()["error"]["type"] == "not_found_error"
    method = await http.get(PATH)
    assert method.status_code == 405 and method.json()["type"] == "error"
    elsewhere = await http.get("/v1/nothing")
    assert "type" not in elsewhere.json()


def test_keys(engine: AsyncEngine) -> None:
    with serve(engine, make_settings(api_keys=("secret",))) as server:
        with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as good:
            assert good.messages.create(messages=HI, **GREEDY).usage.output_tokens == 12
        with (
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as bad,
            pytest.raises(anthropic.AuthenticationError) as caught,
        ):
            bad.messages.create(messages=HI, **GREEDY)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"


async def test_the_document_describes_it(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    operation = document["paths"][PATH]["post"]
    schema = document["components"]["schemas"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("MessagesRequest")
    assert "MessageStreamEvent" in schema and "MessageDelta" in schema and "ImageBlock" in schema
