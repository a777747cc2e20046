"""Checks of OpenAI's messages that concern roles: names, tool calls, and the results that answer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.requests.custom_tools import write_arguments
from seesay.serving.requests.tools import read_arguments
from seesay.serving.requests.unknown_fields import refuse_unknown_fields

_TEXT_FIELDS = ("name", "tool_call_id", "reasoning_content")
_ROLES_OF_FIELDS = {"tool_calls": "assistant", "tool_call_id": "tool"}


def check_turns(messages: Sequence[Mapping[str, object]], param: str) -> None:
    """Check that names are texts, that tool calls are well-formed and the assistant's, and that the tool messages after
    a turn with calls answer each of them once. Completes arguments that were cut off, and gives calls of custom tools
    the form of others, in place. Raises `ApiError` 400
    that names the field at fault."""
    waiting: dict[str, str] = {}  # id → place of each call without a result so far
    for index, message in enumerate(messages):
        where = f"{param}[{index}]"
        for name in _TEXT_FIELDS:
            if not isinstance(message.get(name), str | None):
                raise bad_request(f"{where}.{name} must be a string, got {show(message[name])}", f"{where}.{name}")
        for name, role in _ROLES_OF_FIELDS.items():
            if message.get(name) is not None and message.get("role") != role:
                raise bad_request(
                    f"{where}.{name} is allowed in messages of the role {role!r} only, got {show(message.get('role'))}",
                    f"{where}.{name}",
                )
        if message.get("role") == "tool":
            _take_result(message, waiting, f"{where}.tool_call_id")
            continue
        _check_all_answered(waiting)
        if message.get("tool_calls") is not None:
            waiting = _read_calls(message["tool_calls"], f"{where}.tool_calls")
    _check_all_answered(waiting)


def _take_result(message: Mapping[str, Any], waiting: dict[str, str], where: str) -> None:
    call_id = message.get("tool_call_id")
    if not call_id:
        raise bad_request(f"{where} is missing: a tool message names the call that it answers", where)
    if waiting.pop(call_id, None) is None:
        raise bad_request(
            f"{where}: the turn before the results has no tool call {show(call_id)} that is not answered yet",
            where,
        )


def _check_all_answered(waiting: Mapping[str, str]) -> None:
    for call_id, place in waiting.items():
        raise bad_request(f"{place}: no tool message follows with the id {show(call_id)} of this call", place)


def _read_calls(calls: object, where: str) -> dict[str, str]:
    """Return the places of tool calls, by id."""
    if not isinstance(calls, list):
        raise bad_request(f"{where} must be a list of tool calls, got {show(calls)}", where)
    found: dict[str, str] = {}
    for index, call in enumerate(calls):
        place = f"{where}[{index}]"
        call_id = _read_call(call, place)
        if call_id in found:
            raise bad_request(f"{place}.id: {show(call_id)} is also the id of another call", f"{place}.id")
        found[call_id] = place
    return found


def _read_call(call: Any, where: str) -> str:
    is_custom = isinstance(call, dict) and call.get("type") == "custom"
    fields = _read_object(call, ("id", "type", "custom" if is_custom else "function"), where)
    if fields["type"] not in ("function", "custom"):
        raise bad_request(f"{where}.type must be 'function' or 'custom', got {show(fields['type'])}", f"{where}.type")
    if not isinstance(fields["id"], str) or not fields["id"]:
        raise bad_request(f"{where}.id must be a non-empty string, got {show(fields['id'])}", f"{where}.id")
    if is_custom:
        custom = _read_texts(fields["custom"], ("name", "input"), f"{where}.custom")
        call["function"] = {"name": custom["name"], "arguments": write_arguments(custom["input"])}
        del call["custom"]
        return fields["id"]
    function = _read_texts(fields["function"], ("name", "arguments"), f"{where}.function")
    function["arguments"] = read_arguments(function["arguments"], f"{where}.function.arguments")
    return fields["id"]


def _read_texts(value: dict[str, Any], names: Sequence[str], where: str) -> dict[str, Any]:
    _read_object(value, names, where)
    for name, text in value.items():
        if not isinstance(text, str):
            raise bad_request(f"{where}.{name} must be a string, got {show(text)}", f"{where}.{name}")
    return value


def _read_object(value: object, names: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise bad_request(f"{where} must be an object with {', '.join(names)}, got {show(value)}", where)
    for name in names:
        if name not in value:
            raise bad_request(f"{where}.{name} is missing", f"{where}.{name}")
    refuse_unknown_fields(value, names, where)
    return value
