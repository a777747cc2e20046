"""Turn Anthropic's messages into `Message`s, checked before any media is fetched. Errors are 400 and name the field."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from seesay.config import MediaLimits
from seesay.errors import show
from seesay.serving.anthropic.checks import check_media_type, check_tools
from seesay.serving.anthropic.documents import read_document
from seesay.serving.errors import bad_request
from seesay.serving.requests.content import check_source
from seesay.serving.requests.unknown_fields import refuse_unknown_fields
from seesay.templates.json_pieces import dump_in_pieces
from seesay.values import MediaPart, MediaPlace, Message, Modality, TextPart

Part = TextPart | MediaPart

_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_UNSUPPORTED = ("search_result", "redacted_thinking", "server_tool_use", "file")
_THOUGHTS = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}
"""The blocks of thoughts, and their fields."""


def read_conversation(system: object, messages: object, limits: MediaLimits) -> tuple[Message, ...]:
    """Return the system prompt and the turns. Consecutive turns of one role are merged."""
    if not isinstance(messages, list) or not messages:
        raise bad_request(f"messages must be a list with at least one message, got {show(messages)}", "messages")
    turns = [
        turn
        for index, message in enumerate(messages)
        for turn in _read_message(message, f"messages[{index}]", limits, is_last=index == len(messages) - 1)
    ]
    check_tools(messages)
    if not turns:
        raise bad_request("messages must have more than redacted thoughts", "messages")
    return (*_read_system(system), *_merge(turns))


def _merge(turns: Sequence[Message]) -> Iterator[Message]:
    """Merge consecutive turns of one role. Tool results and tool calls stay separate turns."""
    numbers = itertools.count()
    for (role, _), group in itertools.groupby(
        turns, lambda turn: (turn.role, next(numbers) if turn.extra or turn.role == "tool" else -1)
    ):
        members = list(group)
        parts = tuple(part for turn in members for part in turn.parts)
        yield members[0] if len(members) == 1 else Message(role=role, parts=parts)


def _read_system(system: object) -> list[Message]:
    if system is None or system == "" or system == []:
        return []
    if isinstance(system, str):
        return [Message(role="system", parts=(TextPart(text=system),))]
    if not isinstance(system, list):
        raise bad_request(f"system must be a string or a list of text blocks, got {show(system)}", "system")
    parts: list[Part] = []
    for index, block in enumerate(system):
        where = f"system[{index}]"
        if _kind_of(block, where) != "text":
            raise bad_request(f"{where}.type must be 'text' in the system prompt, got {show(block['type'])}", where)
        parts.append(_read_text(block, where))
    return [Message(role="system", parts=tuple(parts))]


def _read_message(message: object, where: str, limits: MediaLimits, *, is_last: bool) -> list[Message]:
    """Return the message as turns. Each tool result becomes a separate turn."""
    if not isinstance(message, Mapping):
        raise bad_request(f"{where} must be an object with role and content, got {show(message)}", where)
    refuse_unknown_fields(message, ("role", "content"), where, takes_null=True)
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise bad_request(
            f"{where}.role must be user or assistant (the system prompt goes into the field system), got {show(role)}",
            f"{where}.role",
        )
    content = _as_blocks(content)
    if not isinstance(content, list):
        raise bad_request(
            f"{where}.content must be a string or a list of blocks, got {show(content)}", f"{where}.content"
        )
    if not content and not (is_last and role == "assistant"):
        raise bad_request(f"{where}.content must not be empty, got {show(message.get('content'))}", f"{where}.content")
    return _read_assistant(content, where) if role == "assistant" else _read_user(content, where, limits)


def _as_blocks(content: object) -> object:
    """Return the content with a text as a list of blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def _read_user(content: list[Any], where: str, limits: MediaLimits) -> list[Message]:
    results: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(content):
        path = f"{where}.content[{index}]"
        if _kind_of(block, path) == "tool_result":
            results.append(_read_tool_result(block, path, limits))
        else:
            parts += _read_part(block, path, limits)
    return [*results, Message(role="user", parts=tuple(parts))] if parts else results


def _read_assistant(content: list[Any], where: str) -> list[Message]:
    parts: list[Part] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for index, block in enumerate(content):
        path = f"{where}.content[{index}]"
        kind = _kind_of(block, path)
        if kind == "text":
            parts.append(_read_text(block, path))
        elif kind == "tool_use":
            calls.append(_read_tool_use(block, path))
        elif kind in _THOUGHTS:
            thoughts += _read_thought(block, path)
        else:
            why = f"{path}: an assistant turn takes text, thinking, redacted_thinking and tool_use blocks, got {kind}"
            raise bad_request(why, f"{path}.type")
    extra: dict[str, Any] = {"tool_calls": calls} if calls else {}
    if thoughts:
        extra["reasoning_content"] = "\n".join(thoughts)
    is_turn = parts or extra or not content  # not so if all of its thoughts are redacted
    return [Message(role="assistant", parts=tuple(parts), extra=extra)] if is_turn else []


def _read_thought(block: Mapping[str, object], where: str) -> list[str]:
    """Return the text of a thought: none where it is redacted, so that nobody but its own server can read it."""
    names = _THOUGHTS[str(block["type"])]
    refuse_unknown_fields(block, ("type", *names), where, takes_null=True)
    for name in names:
        if not isinstance(block.get(name), str):
            raise bad_request(f"{where}.{name} must be a string, got {show(block.get(name))}", f"{where}.{name}")
    return [str(block["thinking"])] if "thinking" in names else []


def _read_tool_use(block: Mapping[str, object], where: str) -> dict[str, Any]:
    refuse_unknown_fields(block, ("type", "id", "name", "input", "cache_control"), where, takes_null=True)
    if not isinstance(block.get("name"), str):
        raise bad_request(f"{where}.name must be a string, got {show(block.get('name'))}", f"{where}.name")
    if not isinstance(block.get("input"), Mapping):
        raise bad_request(f"{where}.input must be an object, got {show(block.get('input'))}", f"{where}.input")
    function = {"name": block["name"], "arguments": "".join(dump_in_pieces(block["input"]))}
    return {"id": str(block.get("id") or ""), "type": "function", "function": function}


def _mark_failed(parts: list[Part]) -> list[Part]:
    """Say at the beginning that a tool failed: no chat template has a place for it."""
    if parts and isinstance(parts[0], TextPart):
        return [TextPart(text=f"Error: {parts[0].text}"), *parts[1:]]
    return [_FAILED, *parts]


def _read_tool_result(block: Mapping[str, object], where: str, limits: MediaLimits) -> Message:
    refuse_unknown_fields(
        block, ("type", "tool_use_id", "content", "is_error", "cache_control"), where, takes_null=True
    )
    content = _as_blocks(block.get("content"))
    if not isinstance(content, list | None):
        raise bad_request(
            f"{where}.content must be a string or a list of blocks, got {show(content)}", f"{where}.content"
        )
    is_error = block.get("is_error")
    if not isinstance(is_error, bool | None):
        raise bad_request(f"{where}.is_error must be true or false, got {show(is_error)}", f"{where}.is_error")
    read = (_read_part(part, f"{where}.content[{index}]", limits) for index, part in enumerate(content or ()))
    parts = list(itertools.chain.from_iterable(read))
    if is_error:
        parts = _mark_failed(parts)
    return Message(role="tool", parts=tuple(parts), extra={"tool_call_id": str(block.get("tool_use_id") or "")})


_FAILED = TextPart(text="Error")


def _read_part(block: Mapping[str, object], where: str, limits: MediaLimits) -> list[Part]:
    kind = _kind_of(block, where)
    if kind == "text":
        return [_read_text(block, where)]
    if kind == "image":
        return [_read_image(block, where, limits)]
    if kind == "document":
        return read_document(block, where, limits, lambda part, path: _read_part(part, path, limits))
    _fail_kind(kind, where)


def _read_text(block: Mapping[str, object], where: str) -> TextPart:
    if block.get("citations") == []:
        block = {key: value for key, value in block.items() if key != "citations"}
    refuse_unknown_fields(block, ("type", "text", "cache_control"), where, takes_null=True)
    text = block.get("text")
    if not isinstance(text, str) or not text:
        raise bad_request(f"{where}.text must be a non-empty string, got {show(text)}", f"{where}.text")
    return TextPart(text=text)


def _read_image(block: Mapping[str, object], where: str, limits: MediaLimits) -> MediaPart:
    refuse_unknown_fields(block, ("type", "source", "cache_control"), where, takes_null=True)
    source = block.get("source")
    path = f"{where}.source"
    if not isinstance(source, Mapping):
        raise bad_request(f"{path} must be an object of type base64 or url, got {show(source)}", path)
    if source.get("type") == "base64":
        refuse_unknown_fields(source, ("type", "media_type", "data"), path, takes_null=True)
        media_type, data = source.get("media_type"), source.get("data")
        if media_type not in _IMAGE_TYPES:
            raise bad_request(
                f"{path}.media_type must be one of {', '.join(_IMAGE_TYPES)}, got {show(media_type)}",
                f"{path}.media_type",
            )
        if not isinstance(data, str) or not data:
            raise bad_request(f"{path}.data must be the picture in base64, got {show(data)}", f"{path}.data")
        check_media_type(media_type, data, path)
        place = MediaPlace(source=f"{path}.data")
        return MediaPart(modality=Modality.IMAGE, source=f"data:{media_type};base64,{data}", place=place)
    if source.get("type") == "url":
        refuse_unknown_fields(source, ("type", "url"), path, takes_null=True)
        check_source(source.get("url"), limits, f"{path}.url")
        return MediaPart(modality=Modality.IMAGE, source=source["url"], place=MediaPlace(source=f"{path}.url"))
    raise bad_request(f"{path}.type must be base64 or url, got {show(source.get('type'))}", f"{path}.type")


def _kind_of(block: object, where: str) -> str:
    if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
        raise bad_request(f"{where} must be an object with a type, got {show(block)}", where)
    return str(block["type"])


def _fail_kind(kind: str, where: str) -> NoReturn:
    known = kind in _UNSUPPORTED
    why = f"{kind} blocks are not supported" if known else f"unknown block type {show(kind)}"
    raise bad_request(f"{where}: {why}; send text, image, document or tool_result", f"{where}.type")
