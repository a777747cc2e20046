"""Conversations: begun, continued by responses, listed, and of one owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from live_server import MODEL, LiveServer

OPTIONS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 4}


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_responses_continue_a_conversation(client: openai.OpenAI) -> None:
    begun = client.conversations.create(items=[{"role": "user", "content": "the game"}], metadata={"a": "b"})
    assert begun.object == "conversation" and begun.metadata == {"a": "b"}
    first = client.responses.create(conversation=begun.id, input="one", **OPTIONS)
    second = client.responses.create(conversation={"id": begun.id}, input="two", **OPTIONS)
    assert second.conversation is not None and second.conversation.id == begun.id
    turns: Any = [{"role": "user", "content": "the game"}, {"role": "user", "content": "one"}]
    turns += [{"role": "assistant", "content": first.output_text}, {"role": "user", "content": "two"}]
    assert client.responses.create(input=turns, **OPTIONS).output_text == second.output_text
    items: Any = list(client.conversations.items.list(begun.id, order="asc", limit=2))
    said = [item.content[0].text for item in items]
    assert said == ["the game", "one", first.output_text, "two", second.output_text]
    assert [item.role for item in items] == ["user", "user", "assistant", "user", "assistant"]


def test_items_are_added_and_conversations_deleted(client: openai.OpenAI) -> None:
    begun = client.conversations.create()
    added: Any = client.conversations.items.create(begun.id, items=[{"role": "user", "content": "x"}])
    assert [item.content[0].text for item in added.data] == ["x"]
    assert [item.id for item in client.conversations.items.list(begun.id)] == [added.data[0].id]
    assert client.conversations.update(begun.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.retrieve(begun.id).metadata == {"c": "d"}
    assert client.conversations.delete(begun.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(begun.id)
    with pytest.raises(openai.NotFoundError, match="conversation:"):
        client.responses.create(conversation=begun.id, input="x", **OPTIONS)


def test_single_items_are_read_and_deleted(client: openai.OpenAI, server: LiveServer) -> None:
    """The ids of the others stay, and no later item gets the id of a deleted one. Responses do not see it any more."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    turns: Any = [
        {"role": "user", "content": "the game"},
        {"role": "assistant", "content": "so"}, call, {**call, "call_id": "d"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "function_call_output", "call_id": "d", "output": "2"},
        {"role": "user", "content": "one"},
    ]  # fmt: skip
    begun = client.conversations.create(items=turns)

    def read() -> list[Any]:
        return list(client.conversations.items.list(begun.id, order="asc"))

    before = read()
    assert len(before) == 7
    found: Any = client.conversations.items.retrieve(before[2].id, conversation_id=begun.id)
    assert (found.type, found.call_id) == ("function_call", "c")
    for index in (1, 2, 4, 3, 5, 6):
        assert client.conversations.items.delete(before[index].id, conversation_id=begun.id).id == begun.id
    with pytest.raises(openai.NotFoundError, match="item_id"):
        client.conversations.items.retrieve(before[2].id, conversation_id=begun.id)
    with pytest.raises(openai.NotFoundError, match="item_id"):
        client.conversations.items.delete(before[6].id, conversation_id=begun.id)
    added: Any = client.conversations.items.create(begun.id, items=[{"role": "user", "content": "two"}])
    assert [item.id for item in read()] == [before[0].id, added.data[0].id]
    assert added.data[0].id not in [item.id for item in before]
    answer = client.responses.create(conversation=begun.id, input="three", **OPTIONS)
    turns = [{"role": "user", "content": text} for text in ("the game", "two", "three")]
    assert client.responses.create(input=turns, **OPTIONS).output_text == answer.output_text
    url = f"{server.url}/v1/conversations/{begun.id}/items/{before[0].id}"
    for method in ("GET", "DELETE"):
        assert httpx.request(method, url, headers={"authorization": "Bearer other"}).status_code == 404


def test_a_conversation_is_no_response_and_belongs_to_its_owner(client: openai.OpenAI, server: LiveServer) -> None:
    begun = client.conversations.create()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)
    response = client.responses.create(input="x", **OPTIONS)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(response.id)
    with pytest.raises(openai.BadRequestError, match="cannot be combined"):
        client.responses.create(conversation=begun.id, previous_response_id=response.id, input="x", **OPTIONS)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
        url = f"{server.url}/v1/conversations/{begun.id}{path}"
        assert httpx.request(method, url, headers={"authorization": "Bearer other"}).status_code == 404


def test_errors_name_the_items_of_a_conversation(client: openai.OpenAI) -> None:
    wrong: Any = [{"role": "user", "content": "the game"}, {"role": "usr", "content": "x"}]
    with pytest.raises(openai.BadRequestError, match=r"items\[1\]\.role") as refused:
        client.conversations.create(items=wrong)
    assert refused.value.param == "items[1].role"
    begun = client.conversations.create()
    with pytest.raises(openai.BadRequestError, match=r"items\[1\]\.role"):
        client.conversations.items.create(begun.id, items=wrong)
