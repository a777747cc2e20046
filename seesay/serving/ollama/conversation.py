"""Turn the messages of Ollama's API into those of OpenAI's, which `requests/content.py` reads and checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from seesay.serving.errors import bad_request
from seesay.serving.ollama.protocol import CalledFunction, ChatTurn, GenerateRequest
from seesay.values import MediaPart, Message
from seesay.values.media import MediaPlace


def make_messages(turns: Sequence[ChatTurn]) -> list[dict[str, Any]]:
    """Return the messages. Calls without an id get one, and a result without one answers the first call that is still
    open, of the function that it names if it names one. Raises `ApiError` 400 for a result without a call."""
    messages: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # id and function of each call without a result so far
    for index, turn in enumerate(turns):
        message: dict[str, Any] = {"role": turn.role, "content": _make_content(turn.content or "", turn.images)}
        if turn.thinking:
            message["reasoning_content"] = turn.thinking
        if turn.tool_calls:
            ids = [call.id or f"call_{index}_{number}" for number, call in enumerate(turn.tool_calls)]
            waiting = [(call_id, call.function.name) for call_id, call in zip(ids, turn.tool_calls)]
            message["tool_calls"] = [_make_call(call_id, call.function) for call_id, call in zip(ids, turn.tool_calls)]
        if turn.role == "tool":
            message["tool_call_id"] = _take_call(turn, waiting, f"messages[{index}]")
        messages.append(message)
    return messages


def make_prompt(body: GenerateRequest) -> list[dict[str, Any]]:
    """Return the conversation of `/api/generate`."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    return [*system, {"role": "user", "content": _make_content(body.prompt, body.images)}]


def place_pictures(messages: Sequence[Message], fields: Sequence[str]) -> tuple[Message, ...]:
    """Return the messages, whose pictures errors name by the field that has those of their message."""
    placed = []
    for message, field in zip(messages, fields, strict=True):
        numbers = count()
        parts = [
            replace(part, place=MediaPlace(source=f"{field}[{next(numbers)}]")) if isinstance(part, MediaPart) else part
            for part in message.parts
        ]
        placed.append(replace(message, parts=tuple(parts)))
    return tuple(placed)


def _make_content(text: str, images: Sequence[str] | None) -> object:
    """Return the content of a turn, whose pictures come first, as in Ollama."""
    if not images:
        return text
    pictures = [{"type": "image_url", "image_url": {"url": _make_url(image)}} for image in images]
    return [*pictures, {"type": "text", "text": text}]


def _make_url(image: str) -> str:
    return image if image[:5].lower() == "data:" else f"data:image/png;base64,{image}"


def _make_call(call_id: str, called: CalledFunction) -> dict[str, object]:
    function = {"name": called.name, "arguments": json.dumps(called.arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


def _take_call(turn: ChatTurn, waiting: list[tuple[str, str]], where: str) -> str:
    """Return the id of the call that a result answers, and remove it from those that wait."""
    for entry in waiting:
        call_id, name = entry
        if turn.tool_call_id in (None, call_id) and turn.tool_name in (None, name):
            waiting.remove(entry)
            return call_id
    raise bad_request(f"{where}: no call before it that has no result yet is answered by it", where)
