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
