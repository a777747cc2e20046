"""The items of a request's `input` to the Responses API, read into messages before any media is fetched. Errors are 400
and name the item at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seesay.config import MediaLimits
from seesay.errors import RequestError, show
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.requests.content import check_media
from seesay.serving.requests.custom_tools import write_arguments
from seesay.serving.requests.document_fields import PAGE_FIELDS, find_source, make_document
from seesay.serving.requests.tools import read_arguments
from seesay.values import MediaPart, MediaPlace, Message, Modality, TextPart
from seesay.vl.constants import DETAILS
from seesay.vl.prompts.conversation_parts import parse_audio

_ROLES = ("system", "developer", "user", "assistant")
_TEXT_KEYS = frozenset({"type", "text"})
_PART_KEYS = {
    "input_text": _TEXT_KEYS,
    "input_image": frozenset({"type", "image_url", "detail", "file_id"}),
    "input_file": frozenset({"type", "file_url", "file_data", "file_id", "filename", "detail", *PAGE_FIELDS}),
    "input_audio": frozenset({"type", "input_audio"}),
    "output_text": _TEXT_KEYS | {"annotations", "logprobs", "parsed"},
    "text": _TEXT_KEYS,
}
_ITEM_KEYS = {
    "message": frozenset({"type", "role", "content", "id", "status", "phase"}),
    "function_call": frozenset(
        {"type", "call_id", "name", "arguments", "id", "status", "namespace", "caller", "parsed_arguments"}
    ),
    "function_call_output": frozenset({"type", "call_id", "output", "id", "status", "caller"}),
    "custom_tool_call": frozenset({"type", "call_id", "name", "input", "id", "status", "namespace", "caller"}),
    "custom_tool_call_output": frozenset({"type", "call_id", "output", "id", "status", "caller"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
}


def read_input(
    given: object, earlier: Sequence[Message], limits: MediaLimits, *, param: str = "input"
) -> tuple[Message, ...]:
    """Return the messages of the field `param`, which continue the messages `earlier`."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise bad_request(f"{param} must be a string or a list of items, got {show(given)}", param)
    if not given:
        raise bad_request(f"{param} must be a list with at least one item, got an empty list", param)
    conversation = _Conversation(earlier)
    for index, item in enumerate(given):
        conversation.add(item, f"{param}[{index}]")
    messages = conversation.end()
    check_media((part for message in messages for part in message.parts if isinstance(part, MediaPart)), limits, param)
    return messages


@dataclass(slots=True)
class _Turn:
    """A turn of the assistant, which has several items: its thought, its text and its calls."""

    parts: list[TextPart | MediaPart] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def as_message(self) -> Message:
        extra: dict[str, object] = {}
        if self.calls:
            extra["tool_calls"] = self.calls
        if self.reasoning:
            extra["reasoning_content"] = "\n".join(self.reasoning)
        return Message(role="assistant", parts=tuple(self.parts), extra=extra)


class _Conversation:
    """Turns of items, in order. Each call has one result, before the next turn begins."""

    def __init__(self, earlier: Sequence[Message]) -> None:
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self._waiting: dict[str, str] = {}  # id → place of each call without a result so far
        for message in earlier[-1:]:
            self._waiting = {call["id"]: "previous_response_id" for call in message.extra.get("tool_calls", ())}

    def add(self, item: object, where: str) -> None:
        """Add an item."""
        if not isinstance(item, dict):
            raise bad_request(f"{where} must be an object with a type, got {show(item)}", where)
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in _ITEM_KEYS:
            known = ", ".join(map(repr, _ITEM_KEYS))
            raise bad_request(f"{where}.type must be one of {known}, got {show(kind)}", f"{where}.type")
        if unknown := sorted(set(item) - _ITEM_KEYS[kind]):
            raise bad_request(f"{where} has the unknown field {unknown[0][:60]!r}", f"{where}.{unknown[0][:60]}")
        if kind == "custom_tool_call":
            self._add_call({**item, "arguments": _write_input(item, where)}, where, kind="custom")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._add_result(item, where)
        elif kind == "function_call":
            self._add_call(item, where)
        elif kind == "reasoning":
            self._begin_turn().reasoning += _read_reasoning(item, where)
        else:
            self._add_message(item, where)

    def end(self) -> tuple[Message, ...]:
        """Return the messages."""
        self._end_turn()
        self._check_all_answered()
        return tuple(self._messages)

    def _add_message(self, item: Mapping[str, object], where: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in _ROLES:
            raise bad_request(f"{where}.role must be one of {', '.join(_ROLES)}, got {show(role)}", f"{where}.role")
        parts = _read_parts(content, f"{where}.content")
        if role != "assistant":
            self._end_turn()
            self._check_all_answered()
            self._messages.append(Message(role="system" if role == "developer" else role, parts=parts))
            return
        if self._turn is not None and self._turn.parts and not self._turn.calls:
            self._end_turn()
        self._begin_turn().parts += parts

    def _add_call(self, item: Mapping[str, Any], where: str, *, kind: str = "function") -> None:
        for key in ("call_id", "name", "arguments"):
            if not isinstance(item.get(key), str) or (key != "arguments" and not item[key]):
                raise bad_request(f"{where}.{key} must be a string, got {show(item.get(key))}", f"{where}.{key}")
        call_id = item["call_id"]
        turn = self._begin_turn()
        if call_id in self._waiting:
            raise bad_request(f"{where}.call_id: {show(call_id)} is also the id of another call", f"{where}.call_id")
        self._waiting[call_id] = where
        arguments = read_arguments(item["arguments"], f"{where}.arguments")
        function = {"name": item["name"], "arguments": arguments}
        turn.calls.append({"id": call_id, "type": kind, "function": function})

    def _add_result(self, item: Mapping[str, Any], where: str) -> None:
        self._end_turn()
        call_id, name = item.get("call_id"), f"{where}.call_id"
        if not isinstance(call_id, str) or not call_id:
            raise bad_request(f"{name} must be the call_id of a function_call, got {show(call_id)}", name)
        if self._waiting.pop(call_id, None) is None:
            raise bad_request(
                f"{name}: there is no function_call {show(call_id)} before it that is not answered yet", name
            )
        parts = _read_parts(item.get("output"), f"{where}.output")
        self._messages.append(Message(role="tool", parts=parts, extra={"tool_call_id": call_id}))

    def _begin_turn(self) -> _Turn:
        """Return the assistant's turn that is open, or begin one."""
        if self._turn is None:
            self._check_all_answered()
            self._turn = _Turn()
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.as_message())
            self._turn = None

    def _check_all_answered(self) -> None:
        for call_id, place in self._waiting.items():
            raise bad_request(f"{place}: no function_call_output follows for the call {show(call_id)}", place)


def _write_input(item: Mapping[str, object], where: str) -> str:
    """Return the text that a custom tool was called with as arguments of a function."""
    text = item.get("input")
    if not isinstance(text, str):
        raise bad_request(f"{where}.input must be a string, got {show(text)}", f"{where}.input")
    return write_arguments(text)


def _read_reasoning(item: Mapping[str, object], where: str) -> list[str]:
    """Return the texts of a thought, as the answer had them. Without them, its summary is not used."""
    content = item.get("content")
    if not isinstance(content, list | None):
        raise bad_request(f"{where}.content must be a list, got {show(content)}", f"{where}.content")
    texts = []
    for index, part in enumerate(content or ()):
        place = f"{where}.content[{index}]"
        if not isinstance(part, dict) or part.get("type") != "reasoning_text" or not isinstance(part.get("text"), str):
            raise bad_request(f"{place} must be an object of type reasoning_text with a text, got {show(part)}", place)
        texts.append(part["text"])
    return texts


def _read_parts(content: object, where: str) -> tuple[TextPart | MediaPart, ...]:
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise bad_request(f"{where} must be a string or a list of parts, got {show(content)}", where)
    return tuple(_read_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _read_part(part: object, where: str) -> TextPart | MediaPart:
    if not isinstance(part, dict):
        raise bad_request(f"{where} must be an object with a type, got {show(part)}", where)
    kind = part.get("type")
    known = _PART_KEYS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise bad_request(f"{where}.type must be one of {', '.join(_PART_KEYS)}; got {show(kind)}", f"{where}.type")
    if unknown := sorted(set(part) - known):
        raise bad_request(f"{where} has the unknown field {unknown[0][:60]!r}", f"{where}.{unknown[0][:60]}")
    if kind == "input_image":
        return _read_image(part, where)
    if kind == "input_file":
        source, path = find_source(part, ("file_data", "file_url"), where)
        return make_document(part, source, path=path, where=where, names={"filename": "filename"})
    if kind == "input_audio":
        return _read_audio(part, where)
    if not isinstance(part.get("text"), str):
        raise bad_request(f"{where}.text must be a string, got {show(part.get('text'))}", f"{where}.text")
    return TextPart(text=part["text"])


def _read_audio(part: dict[str, object], where: str) -> MediaPart:
    try:
        return parse_audio(part, "input_audio", where)
    except RequestError as error:
        raise ApiError.from_error(error) from error


def _read_image(part: dict[str, object], where: str) -> MediaPart:
    if part.get("file_id") is not None or not isinstance(part.get("image_url"), str):
        raise bad_request(
            f"{where}.image_url must be a URL, got {show(part.get('image_url'))}; file_id is not supported",
            f"{where}.image_url",
        )
    detail = part.get("detail")
    if detail is not None and detail not in DETAILS:
        raise bad_request(f"{where}.detail must be {', '.join(DETAILS)}, got {show(detail)}", f"{where}.detail")
    return MediaPart(
        modality=Modality.IMAGE,
        source=part["image_url"],
        options={"detail": "low"} if detail == "low" else {},
        place=MediaPlace(source=f"{where}.image_url", parent=where, keys={"detail": "detail"}),
    )
