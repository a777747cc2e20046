"""What the distributor reads of a body: equal pictures and equal beginnings have equal keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seesay.serving.routing.affinity import Wish, read_wish

PICTURE, OTHER = "data:image/png;base64,AAAA", "https://example.com/b.png"


def openai(picture: str | None, text: str, system: str = "You help.") -> dict[str, Any]:
    parts: list[Any] = [{"type": "text", "text": text}]
    if picture:
        parts.insert(0, {"type": "image_url", "image_url": {"url": picture}})
    return {"model": "m", "messages": [{"role": "system", "content": system}, {"role": "user", "content": parts}]}


def anthropic(data: str, text: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": text}]
    return {"model": "m", "system": "You help.", "messages": [{"role": "user", "content": content}]}


def responses(picture: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_image", "image_url": picture}, {"type": "input_text", "text": text}]
    return {"model": "m", "instructions": "You help.", "input": [{"role": "user", "content": content}]}


def ollama(data: str, text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text, "images": [data]}]}


def native(picture: str, text: str) -> dict[str, Any]:
    return {"model": "m", "prompt": text, "image_url": picture}


def key_of(body: dict[str, Any]) -> bytes:
    return read_wish(json.dumps(body).encode()).key


@pytest.mark.parametrize("make", [openai, anthropic, responses, ollama, native])
def test_key_of_pictures(make: Any) -> None:
    """The question does not count, the picture does."""
    first = key_of(make(PICTURE, "What is it?"))
    assert first and first == key_of(make(PICTURE, "Which colour has it, and why would anybody paint it so?"))
    assert first != key_of(make(OTHER, "What is it?"))


def test_key_of_conversation() -> None:
    """Later turns change nothing, with or without pictures in them."""
    for picture in (PICTURE, None):
        body = openai(picture, "Hello")
        first = key_of(body)
        body["messages"] += [{"role": "assistant", "content": "Hi"}, *openai(OTHER, "And this?")["messages"][1:]]
        assert key_of(body) == first


def test_conversations_about_one_picture_differ() -> None:
    """All turns of a conversation have its name; another first question, or another system prompt, has another."""
    for picture in (PICTURE, None):
        body = openai(picture, "word " * 1000 + "one?")
        wish = read_wish(json.dumps(body).encode())
        body["messages"] += [{"role": "assistant", "content": "Hi"}, *openai(OTHER, "And this?")["messages"][1:]]
        assert wish.conversation and read_wish(json.dumps(body).encode()) == wish
        for other in (openai(picture, "word " * 1000 + "two?"), openai(picture, "word " * 1000 + "one?", system="Hm.")):
            assert read_wish(json.dumps(other).encode()).conversation not in (b"", wish.conversation)
    assert read_wish(b'{"messages": []}').conversation == b""


def test_key_of_long_beginning() -> None:
    """The end of a long text does not count; a short one counts as a whole, and so does the system prompt."""
    document = "word " * 100
    assert key_of(openai(None, document + "one?")) == key_of(openai(None, document + "two?"))
    assert key_of(openai(None, "one?")) != key_of(openai(None, "two?"))
    assert key_of(openai(None, "one?")) != key_of(openai(None, "one?", system="You shout."))
    assert key_of({"prompt": "one?"}) != b"" and key_of({"prompt": [1, 2]}) != key_of({"prompt": [1, 3]})


def test_model_session_and_response() -> None:
    wish = read_wish(b'{"model": "m", "session_id": 3, "previous_response_id": "resp_1", "prompt": ""}')
    assert (wish.model, wish.stored_id, wish.key) == ("m", "resp_1", b"") and wish.session
    assert read_wish(b'{"conversation": {"id": "conv_1"}}') == read_wish(b'{"conversation": "conv_1"}')
    assert read_wish(b'{"conversation": "conv_1"}').stored_id == "conv_1"
    assert read_wish(b'{"input_file_id": "file-1"}').stored_id == "file-1"
    assert read_wish(b'{"session_id": -1, "model": 5, "previous_response_id": 7}') == Wish()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"messages": [' + b"{}," * 300_000 + b"{}]}",
        b'{"messages": null, "system": {"a": {"b": null}}}',
        b'{"model": "m"',
        b'--boundary\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--boundary--',
        b'{"messages": "\\ud800"}',
    ],
)
def test_what_cannot_be_read(body: bytes) -> None:
    """Such a body is for the node to refuse."""
    assert read_wish(body).key == b""
