"""What a request says about the node that should answer it: its model, what it continues, and what a node may have
cached of it: the pictures of the first message, else the beginnings of the system prompt and of that message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import dropwhile, takewhile
from typing import Any, NamedTuple

import msgspec

from seesay.system.hashing import digest

_BESIDE = ("prompt", "image_url", "image_data", "images")
"""Fields that belong to the first message."""
_PICTURES = frozenset({"url", "image_url", "video_url", "image", "video", "images", "image_data", "data"})
_BLOCK_BYTES, _MAX_BLOCKS = 256, 8
_STORING = ("/v1/responses", "/v1/conversations", "/v1/files", "/v1/batches")
_STORED_ID = re.compile(rb'"(?:id|output_file_id|error_file_id)": ?"((?:resp_|conv_|file-|batch_)[\w-]{1,80})"')
_MAX_VALUES = 200_000
"""A body of more values is not looked into: reading it would hold up other requests."""


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


def read_wish(body: bytes, path: str = "") -> Wish:
    """Return what a path says, or the JSON of a body; nothing if that cannot be read, which is for the node to
    refuse."""
    if path.startswith(tuple(f"{storing}/" for storing in _STORING)):
        return Wish(stored_id=path.split("/")[3])
    if body.count(b",") + body.count(b"[") <= _MAX_VALUES:
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeError):
            return _make_wish(msgspec.json.decode(body, type=dict[str, Any]))
    return Wish()


def read_stored_ids(path: str, beginning: bytes) -> list[str]:
    """Return the ids of what the node now stores whose answer to a request for `path` begins so."""
    return [found.decode() for found in _STORED_ID.findall(beginning)] if path.startswith(_STORING) else []


def _make_wish(body: dict[str, Any]) -> Wish:
    key, conversation = _make_keys(body)
    model, session = body.get("model"), body.get("session_id")
    continued = body.get("previous_response_id") or body.get("conversation") or body.get("input_file_id")
    if isinstance(continued, dict):
        continued = continued.get("id")
    return Wish(
        model=model if isinstance(model, str) else None,
        key=key,
        conversation=conversation,
        session=b"" if session in (None, -1) else digest(repr(session).encode()),
        stored_id=continued if isinstance(continued, str) else None,
    )


def _make_keys(body: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return `key` and `conversation` of a wish."""
    messages = body.get("messages") or body.get("input")
    messages = messages if isinstance(messages, list) else [messages]
    first = [body.get(name) for name in _BESIDE] + [next(dropwhile(_is_system, messages), None)]
    if not any(first):
        return b"", b""
    system = [body.get("system"), body.get("instructions"), *takewhile(_is_system, messages)]
    of_system, of_first = msgspec.json.encode(system), msgspec.json.encode(first)
    pictures = list(_find_pictures(dict(zip((*_BESIDE, "content"), first))))
    key = digest(*pictures) if pictures else digest(_cut(of_system), _cut(of_first))
    return key, digest(key, of_system, of_first)


def _is_system(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _find_pictures(value: object, name: str = "") -> Iterator[bytes]:
    """Yield each string below `value` that is in a field of pictures. `name`: the field that `value` is in."""
    if isinstance(value, str) and name in _PICTURES:
        yield value.encode()
    elif isinstance(value, list):
        for item in value:
            yield from _find_pictures(item, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _find_pictures(item, key)


def _cut(text: bytes) -> bytes:
    """Return the whole blocks at the beginning of a text: what follows on a long text may differ."""
    num_blocks = min(_MAX_BLOCKS, len(text) // _BLOCK_BYTES)
    return text[: num_blocks * _BLOCK_BYTES or None]
