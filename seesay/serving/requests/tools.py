"""The functions that a request lets the model call, in one form for all APIs, and the checks that all have in common.

Knows no API's fields: `openai/tool_fields.py` and `anthropic/tool_fields.py` read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import from_json

from seesay.errors import show
from seesay.serving.errors import bad_request

if TYPE_CHECKING:
    from seesay.templates.chat import ChatTemplate

MAX_FUNCTIONS = 1024
MAX_SCHEMA_VALUES = 1 << 14
MAX_SCHEMA_DEPTH = 48
NAME_PATTERN = "^[a-zA-Z0-9_.-]{1,128}$"
_NAME = re.compile(NAME_PATTERN.replace("$", r"\Z"))
_NAMING_NONE = frozenset({"type", "properties", "title", "description", "$schema"})
"""Keywords of a schema that names no parameters, where `properties` is empty."""

Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that the model may call. `strict` is None where the request does not say. `place` is its path in the
    request, and `schema_key` the key of its parameters there, for errors. takes_text: it is a custom tool
    (`custom_tools`)."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool | None
    place: str
    schema_key: str
    takes_text: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the function in the form in which chat templates expect it, which is OpenAI's."""
        fields = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The functions of a request. `allowed` names those that this answer may call, None for all of them."""

    functions: tuple[Function, ...] = ()
    mode: Mode = "none"
    allowed: frozenset[str] | None = None
    is_parallel: bool = True

    @property
    def callable(self) -> tuple[Function, ...]:
        """The functions that this answer may call."""
        if self.mode == "none":
            return ()
        return tuple(f for f in self.functions if self.allowed is None or f.name in self.allowed)

    @property
    def custom_names(self) -> frozenset[str]:
        """The names of the custom tools that this answer may call."""
        return frozenset(function.name for function in self.callable if function.takes_text)

    def for_template(self, template: ChatTemplate | None) -> dict[str, Any]:
        """Return the template option that has the functions: none of them where none may be called. Raises `ApiError`
        400 for a template that does not tell the model of them. None: a template that is not known yet."""
        if not self.callable:
            return {}
        if template is not None and not template.writes_tools:
            raise bad_request(
                f"tools: the chat template {template.name!r} does not support tools; choose one that does with "
                "--chat-template (chat_template_config), such as qwen-tools for models of Qwen, or send "
                "tool_choice none",
                "tools",
                code="unsupported_parameter",
            )
        return {"tools": [function.as_json() for function in self.functions]}


def make_function(
    name: Any,
    description: Any,
    parameters: Any,
    strict: Any,
    *,
    place: str,
    schema_key: str = "parameters",
    takes_text: bool = False,
) -> Function:
    """Return a function from the values of a request. `place` is the path of the object that has them. Raises
    `ApiError` 400 that names the one at fault."""
    check_name(name, f"{place}.name")
    if not isinstance(description, str | None):
        raise bad_request(f"{place}.description must be a string, got {show(description)}", f"{place}.description")
    if not isinstance(strict, bool | None):
        raise bad_request(f"{place}.strict must be true or false, got {show(strict)}", f"{place}.strict")
    where = f"{place}.{schema_key}"
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, Mapping):
        raise bad_request(f"{where} must be a JSON Schema, an object, got {show(parameters)}", where)
    if parameters.get("type", "object") != "object":
        raise bad_request(f"{where}.type must be 'object', got {show(parameters['type'])}", f"{where}.type")
    _check_size(parameters, where)
    return Function(
        name=name,
        description=description or "",
        parameters=_complete(parameters),
        strict=strict,
        place=place,
        schema_key=schema_key,
        takes_text=takes_text,
    )


def _complete(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with its type. One that names no parameters allows none: a schema of any object says so by
    `additionalProperties`."""
    named = {"type": "object", **parameters}
    own = {key for key in named if (key, named[key]) not in (("additionalProperties", False), ("required", []))}
    return {**named, "properties": named.get("properties", {})} if own <= _NAMING_NONE else named


def read_arguments(text: str, where: str) -> str:
    """Return the arguments of an earlier call as JSON text of an object. Empty ones and null mean a call without
    arguments; of text that was cut off, the values that are complete. Raises `ApiError` 400 for any other text: chat
    templates that write arguments one by one could not be rendered with it."""
    if not text.strip():
        return ""
    try:
        value, is_whole = json.loads(text), True
    except (ValueError, RecursionError) as error:
        value, is_whole = _read_partial(text), False
        if not isinstance(value, dict):
            why = f"{where} must be JSON text of an object, got {show(text)}: {str(error)[:100]}"
            raise bad_request(why, where) from None
    if value is None:  # as clients write that have no map: Go's nil
        return "{}"
    if not isinstance(value, dict):
        raise bad_request(f"{where} must be JSON text of an object, got {show(text)}", where)
    return text if is_whole else json.dumps(value, ensure_ascii=False)


def _read_partial(text: str) -> object:
    try:
        return from_json(text, allow_partial=True)
    except ValueError:
        return None


def _kind_of(tool: object) -> str | None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return kind if isinstance(kind, str) else None


def drop_server_tools(body: dict[str, Any], own_types: Collection[object]) -> list[str]:
    """Remove from `body` the tools that their server has to run, such as a web search, where others of `own_types` are
    beside them, and return their places."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return []
    kinds = enumerate(map(_kind_of, tools))
    foreign = {index: kind for index, kind in kinds if kind is not None and kind not in own_types}
    if not foreign or len(foreign) == len(tools):
        return []
    body["tools"] = [tool for index, tool in enumerate(tools) if index not in foreign]
    return [f"tools[{index}].{kind}" for index, kind in foreign.items()]


def check_name(name: object, where: str) -> None:
    """Raise `ApiError` 400 for a value that is not the name of a function."""
    if not isinstance(name, str) or _NAME.match(name) is None:
        raise bad_request(f"{where} must be 1 to 128 letters, digits, _, - or ., got {show(name)}", where)


def check_functions(functions: Sequence[Function], param: str = "tools") -> tuple[Function, ...]:
    """Return `functions`. Raises `ApiError` 400 for too many, and for two of one name."""
    if len(functions) > MAX_FUNCTIONS:
        raise bad_request(f"{param} may have at most {MAX_FUNCTIONS} functions, got {len(functions)}", param)
    seen: set[str] = set()
    for function in functions:
        if function.name in seen:
            raise bad_request(
                f"{function.place}.name: there is another function with the name {function.name!r}",
                f"{function.place}.name",
            )
        seen.add(function.name)
    return tuple(functions)


def check_choice(name: object, functions: Sequence[Function], where: str) -> str:
    """Return the name of a function that the choice at `where` names. Raises `ApiError` 400 if there is none."""
    check_name(name, where)
    if all(function.name != name for function in functions):
        raise bad_request(f"{where}: there is no function {name!r} in tools", where)
    return str(name)


def _check_size(schema: Mapping[str, object], where: str) -> None:
    """Raise `ApiError` 400 for a schema that is too deep, or has too many values."""
    num_left = MAX_SCHEMA_VALUES
    level: list[object] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        num_left -= len(level)
        if num_left < 0:
            raise bad_request(f"{where} may have at most {MAX_SCHEMA_VALUES} values", where)
        level = [
            item
            for value in level
            if isinstance(value, Mapping | list)
            for item in (value.values() if isinstance(value, Mapping) else value)
        ]
        if not level:
            return
    raise bad_request(f"{where} may have at most {MAX_SCHEMA_DEPTH} levels", where)
