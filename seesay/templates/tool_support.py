"""Find out, by rendering small conversations, what a jinja chat template writes of tools, calls and their results, and
bring calls and results into the form that it takes.

Templates differ: some write a call's arguments from an object, some from its JSON text; one wants ids of nine
characters; many have no place for a picture in a result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from seesay.errors import ErrorCode, RequestError
from seesay.values import MediaPart, Message, Modality, TextPart

Attempt = Callable[..., str | None]
"""Renders (messages, tools=…), all plain JSON. None where the template refuses."""

_NAME, _KEY, _VALUE, _RESULT = "probe_1d7f", "probe_2e80", "probe_3fa1", "probe_4bc2"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "A text."}}},
    },
}
_LONG_ID, _SHORT_ID = "call_0123456789abcdef01234567", "a1b2c3d4e"
_MAX_ARGUMENT_VALUES = 1 << 16


class ToolSupport:
    """Finds how one template renders tools. Each answer is found once, when it is first asked for."""

    def __init__(self, attempt: Attempt, *, takes_strings: bool) -> None:
        """takes_strings: whether content may be a string."""
        self._attempt = attempt
        self._takes_strings = takes_strings
        self._places: dict[Modality, bool] = {}

    @cached_property
    def writes_tools(self) -> bool:
        """Whether the template renders the tools of a request."""
        user = {"role": "user", "content": self._content("hi")}
        return _NAME in (self._attempt([user], tools=[_TOOL]) or "")

    def bring_extra(self, extra: Mapping[str, object]) -> Mapping[str, object]:
        """Return the other keys of a message, calls and ids in the form that the template takes."""
        if extra.get("tool_calls"):
            extra = {**extra, "tool_calls": self.bring_calls(extra["tool_calls"])}
        if "tool_call_id" in extra:
            extra = {**extra, "tool_call_id": self.bring_id(extra["tool_call_id"])}
        return extra

    def bring_calls(self, calls: object) -> Any:
        """Return the `tool_calls` of a message in the form that the template takes. What is not in OpenAI's form stays
        as it is. Raises RequestError for arguments of too many values."""
        if not isinstance(calls, list | tuple):
            return calls
        takes_objects, takes_long_ids = self._call_form
        return [_bring_call(call, takes_objects, takes_long_ids) for call in calls]

    def bring_id(self, call_id: object) -> Any:
        """Return the `tool_call_id` of a result as `bring_calls` returns the id of its call."""
        _, takes_long_ids = self._call_form
        return call_id if takes_long_ids or not isinstance(call_id, str) else _shorten(call_id)

    def bring_results(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return a conversation whose tool messages hold no media that the template has no place for: these follow the
        results as a turn of the user, or begin the user's turn that is there."""
        if not any(_has_media(message) for message in messages if message.role == "tool"):
            return messages
        found: list[Message] = []
        moved: list[MediaPart] = []
        for message in messages:
            if message.role == "tool":
                media = _media_without_place(message, self._has_place)
                moved += media
                found.append(_without_media(message) if media else message)
            else:
                found += _put_before(moved, message)
                moved = []
        if moved:
            found.append(Message(role="user", parts=tuple(moved)))
        return found

    # --- probes ----------------------------------------------------------------------------------------------------

    @cached_property
    def _call_form(self) -> tuple[bool, bool]:
        """Whether arguments are passed as objects, and whether ids may be long. Of a template that writes no calls,
        JSON text and long ids, as they came."""
        for call_id in (_LONG_ID, _SHORT_ID):
            for is_object in (True, False):
                text = self._attempt(self._round(call_id, is_object=is_object), tools=[_TOOL])
                if text is not None and _is_well_written(text, is_object=is_object):
                    return is_object, call_id == _LONG_ID
        return False, True

    def _has_place(self, modality: Modality) -> bool:
        if modality not in self._places:
            self._places[modality] = self._writes_in_result(modality)
        return self._places[modality]

    def _writes_in_result(self, modality: Modality) -> bool:
        """Return whether the template writes something for a medium in a result, and not its Python form."""
        takes_objects, takes_long_ids = self._call_form
        begun = self._round(_LONG_ID if takes_long_ids else _SHORT_ID, is_object=takes_objects)[:-1]
        text = {"type": "text", "text": _RESULT}
        item = {"type": modality.value, modality.value: f"<{modality.value}>"}
        call_id = _LONG_ID if takes_long_ids else _SHORT_ID
        rendered = [
            self._attempt([*begun, {"role": "tool", "tool_call_id": call_id, "content": content}], tools=[_TOOL])
            for content in ([text], [text, item])
        ]
        without, given = rendered
        if without is None or given is None or _RESULT not in without:
            return False
        return len(given) > len(without) and not any(quoted in given for quoted in ("'type'", '"type": "text"'))

    def _round(self, call_id: str, *, is_object: bool) -> list[dict[str, object]]:
        """Return a question, a call and its result."""
        arguments: object = {_KEY: _VALUE} if is_object else json.dumps({_KEY: _VALUE})
        call = {"id": call_id, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
        return [
            {"role": "user", "content": self._content("hi")},
            {"role": "assistant", "content": self._content(""), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": self._content(_RESULT)},
        ]

    def _content(self, text: str) -> object:
        return text if self._takes_strings else [{"type": "text", "text": text}]


def _media_without_place(message: Message, has_place: Callable[[Modality], bool]) -> list[MediaPart]:
    """Return the media of a tool message: all of them, or none where the template has a place for each."""
    media = [part for part in message.parts if isinstance(part, MediaPart)]
    return [] if all(has_place(part.modality) for part in media) else media


def _without_media(message: Message) -> Message:
    return replace(message, parts=tuple(part for part in message.parts if isinstance(part, TextPart)))


def _is_well_written(text: str, *, is_object: bool) -> bool:
    """Return whether a rendered text has the probe's argument: of an object, not in Python's form; of JSON text, not
    encoded a second time."""
    if _KEY not in text or _VALUE not in text:
        return False
    written = text.rpartition(_VALUE)[0]
    quote = written[written.rfind(_KEY) - 1 : written.rfind(_KEY)]
    if is_object:
        return quote != "'"
    return f'"{_KEY}": "{_VALUE}"' in text


def _bring_call(call: object, takes_objects: bool, takes_long_ids: bool) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    call_id, arguments = call.get("id"), function.get("arguments")
    if call.get("type") == "custom":  # of a tool that takes a text, which the template does not know
        call = {**call, "type": "function"}
    if not takes_long_ids and isinstance(call_id, str):
        call = {**call, "id": _shorten(call_id)}
    if takes_objects and isinstance(arguments, str):
        call = {**call, "function": {**function, "arguments": _read_arguments(arguments)}}
    return call


def _read_arguments(text: str) -> object:
    """Return the object that is `text`, or `text` itself if it is not a JSON object."""
    if sum(map(text.count, ",[{")) > _MAX_ARGUMENT_VALUES:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"the arguments of a tool call may have at most {_MAX_ARGUMENT_VALUES} values",
            "messages",
        )
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _shorten(call_id: str) -> str:
    """Return nine letters and digits that stand for an id."""
    if len(call_id) == len(_SHORT_ID) and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[: len(_SHORT_ID)]


def _has_media(message: Message) -> bool:
    return any(isinstance(part, MediaPart) for part in message.parts)


def _put_before(media: Sequence[MediaPart], message: Message) -> Sequence[Message]:
    """Return a message behind `media`: they begin the turn of a user, and have one of their own before any other."""
    if not media:
        return [message]
    if message.role == "user":
        return [replace(message, parts=(*media, *message.parts))]
    return [Message(role="user", parts=tuple(media)), message]
