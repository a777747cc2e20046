"""Checks across well-formed blocks, as in Anthropic's API: a tool result must answer a tool call, and a picture must
have the media type that its source declares."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence

from seesay.errors import show
from seesay.serving.errors import bad_request

_HEAD_CHARS = 24  # base64 characters: 18 bytes, enough for every signature


def check_tools(messages: Sequence[object]) -> None:
    """Check that each tool result answers a call in the assistant's turn before, and that each call is answered in the
    user's turn after. Raises `ApiError` 400 that names the block at fault."""
    calls: dict[str, str] = {}  # id → place of each call without a result so far
    answered: set[str] = set()
    last_role = None
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role == "assistant" and last_role == "user":  # consecutive turns of one role count as one turn
            _check_all_answered(calls)
            answered.clear()
        last_role = role
        for place, block in _blocks_of(message, f"messages[{index}]"):
            if role == "assistant" and block.get("type") == "tool_use":
                _add_call(calls, block.get("id"), place)
            elif role == "user" and block.get("type") == "tool_result":
                _take_result(calls, answered, block.get("tool_use_id"), place)
    _check_all_answered(calls)


def _blocks_of(message: object, where: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):
        for index, block in enumerate(content):
            if isinstance(block, Mapping):
                yield f"{where}.content[{index}]", block


def _add_call(calls: dict[str, str], call_id: object, place: str) -> None:
    if not isinstance(call_id, str) or not call_id:
        raise bad_request(f"{place}.id must be a non-empty string, got {show(call_id)}", f"{place}.id")
    if call_id in calls:
        raise bad_request(f"{place}.id: {call_id[:60]!r} is also the id of another tool_use", f"{place}.id")
    calls[call_id] = place


def _take_result(calls: dict[str, str], answered: set[str], call_id: object, place: str) -> None:
    name = f"{place}.tool_use_id"
    if not isinstance(call_id, str) or not call_id:
        raise bad_request(f"{name} must be a non-empty string, got {show(call_id)}", name)
    if call_id in answered:
        raise bad_request(f"{name}: {call_id[:60]!r} already has a tool_result", name)
    if calls.pop(call_id, None) is None:
        raise bad_request(f"{name}: there is no tool_use {call_id[:60]!r} in the preceding assistant turn", name)
    answered.add(call_id)


def _check_all_answered(calls: Mapping[str, str]) -> None:
    for call_id, place in calls.items():
        raise bad_request(f"{place}: tool_use {call_id[:60]!r} has no tool_result in the next turn", place)


def check_media_type(media_type: str, data: str, place: str) -> None:
    """Raise `ApiError` 400 unless the base64 `data` begins like a picture of `media_type`. `place` names the source."""
    try:
        head = base64.b64decode(data[:_HEAD_CHARS] + "=" * (-len(data[:_HEAD_CHARS]) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"{place}.data is not base64", f"{place}.data") from None
    found = _find_type(head)
    if found is None:
        raise bad_request(f"{place}.data is not a JPEG, PNG, GIF or WebP picture", f"{place}.data")
    if found != media_type:
        raise bad_request(
            f"{place}.media_type is {media_type}, but the data is a picture of type {found}", f"{place}.media_type"
        )


def _find_type(head: bytes) -> str | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None
