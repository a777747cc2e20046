"""What a request says about the node that should answer it: its model, what it continues, and what a node may have
cached of it: the pictures of the first message, else the beginnings of the system prompt and of that message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from seesay.system.hashing import digest

_PICTURES = frozenset({"url", "image_url", "video_url", "image", "video", "images", "image_data", "data"})
_TEXTS = frozenset({"content", "text", "prompt", "input", "system", "instructions"})
_BLOCK_CHARS, _MAX_BLOCKS = 256, 8
_MAX_VALUES = 200_000
"""A body of more values is not looked into: reading it would hold up other requests."""


class _Body(msgspec.Struct):
    """The fields that are looked at; msgspec skips the others without making objects of them."""

    model: Any = None
    session_id: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    input_file_id: Any = None
    system: Any = None
    instructions: Any = None
    messages: Any = None
    input: Any = None
    prompt: Any = None
    image_url: Any = None
    image_data: Any = None
    images: Any = None


class Wish(NamedTuple):
    """What a request says. `key`: a digest of what others may have had cached, empty if that is nothing.
    `conversation`: a digest of how its conversation began, which all its turns repeat. `session`: its session, which
    one node keeps. `stored_id`: what it continues and one node stores: a response, a conversation, or the file of a
    batch."""

    model: str | None = None
    key: bytes = b""
    conversation: bytes = b""
    session: bytes = b""
    stored_id: str | None = None


_decoder = msgspec.json.Decoder(_Body)


def read_wish(body: bytes | bytearray) -> Wish:
    """Return what the JSON of a body says; nothing if it cannot be read, which is for the node to refuse."""
    if body.count(b",") + body.count(b"[") > _MAX_VALUES:
        return Wish()
    try:
        read = _decoder.decode(body)
        key, conversation = _make_keys(read)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Wish()
    continued = read.previous_response_id or read.conversation or read.input_file_id
    if isinstance(continued, dict):
        continued = continued.get("id")
    return Wish(
        model=read.model if isinstance(read.model, str) else None,
        key=key,
        conversation=conversation,
        session=b"" if read.session_id in (None, -1) else digest(repr(read.session_id).encode()),
        stored_id=continued if isinstance(continued, str) else None,
    )


def _make_keys(body: _Body) -> tuple[bytes, bytes]:
    """Return (key, conversation) of a body's `Wish`."""
    system: list[Any] = [body.system, body.instructions]
    first: list[Any] = [{name: getattr(body, name) for name in ("prompt", "image_url", "image_data", "images")}]
    for message in _messages_of(body):
        if isinstance(message, dict) and message.get("role") in ("system", "developer"):
            system.append(message)
        else:
            first.append(message)
            break
    of_system, of_first = "".join(_strings_of(system, _TEXTS)), "".join(_strings_of(first, _TEXTS))
    if pictures := _strings_of(first, _PICTURES):
        key = digest(*map(_encode, pictures))
    else:
        key = digest(_cut(of_system), _cut(of_first)) if of_first else b""
    return key, digest(key, _encode(of_system), _encode(of_first)) if key else b""


def _messages_of(body: _Body) -> list[Any]:
    messages = body.messages or body.input
    return messages if isinstance(messages, list) else [messages]


def _strings_of(value: Any, names: frozenset[str]) -> list[str]:
    return [text for name, text in _strings(value, "content") if name in names]


def _strings(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield each string below `value`, with the name of the field that it is in."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, key)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _cut(text: str) -> bytes:
    """Return the whole blocks at the beginning of a text: what follows on a long text may differ."""
    num_blocks = min(_MAX_BLOCKS, len(text) // _BLOCK_CHARS)
    return _encode(text[: num_blocks * _BLOCK_CHARS] if num_blocks else text)
