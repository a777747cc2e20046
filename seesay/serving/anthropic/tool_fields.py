"""The tools and tool choices of Anthropic's API: models for the published schemas, and the function that reads them
into `Tools`, whose errors name the field at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SkipValidation

from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.requests.fields import StrictModel
from seesay.serving.requests.tools import (
    MAX_FUNCTIONS,
    NAME_PATTERN,
    Function,
    Mode,
    Tools,
    check_choice,
    check_functions,
    make_function,
)
from seesay.serving.requests.unknown_fields import refuse_unknown_fields

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
_SCHEMA = {"properties": {"type": {"const": "object"}}}
_TOOL_KEYS = (
    "type", "name", "description", "input_schema", "strict", "cache_control", "defer_loading", "allowed_callers",
    "eager_input_streaming",
)  # fmt: skip
_MODES: Mapping[str, Mode] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
HAS_CHOICE = {
    "if": {
        "required": ["tool_choice"],
        "properties": {"tool_choice": {"type": "object", "properties": {"type": {"enum": ["any", "tool"]}}}},
    },
    "then": {"required": ["tools"], "properties": {"tools": {"type": "array", "minItems": 1}}},
}
"""JSON schema of a request whose `tool_choice` forces a call only where there are tools."""


class Tool(StrictModel):
    """A function that the model may call. input_schema: a JSON Schema of type object. strict: whether the input must be
    valid; false lets the model write any object."""

    hints: ClassVar[Mapping[str, tuple[object, ...]]] = {"defer_loading": (False,)}

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: Annotated[dict[str, Any], Field(json_schema_extra=_SCHEMA)]
    strict: bool | None = None
    cache_control: dict[str, Any] | None = Field(None, description="accepted, not used: prefix caching is always on")
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    eager_input_streaming: bool | None = Field(None, description="accepted, not used: inputs are streamed as they come")


class ChooseAny(StrictModel):
    """auto: the model decides; any: it calls one function at least."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool | None = None


class ChooseTool(StrictModel):
    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class ChooseNone(StrictModel):
    type: Literal["none"]


ToolList = SkipValidation[Annotated[list[Tool], Field(max_length=MAX_FUNCTIONS)]]
ToolChoice = SkipValidation[Annotated[ChooseAny | ChooseTool | ChooseNone, Field(discriminator="type")]]


def read_tools(tools: object, choice: object) -> Tools:
    """Return the tools of a request. Raises `ApiError` 400."""
    if not isinstance(tools, list | None):
        raise bad_request(f"tools must be a list, got {show(tools)}", "tools")
    if tools and len(tools) > MAX_FUNCTIONS:
        raise bad_request(f"tools may have at most {MAX_FUNCTIONS} tools, got {len(tools)}", "tools")
    functions = check_functions([_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())])
    mode, allowed, is_parallel = _read_choice(choice, functions)
    if not functions:
        if mode == "required":
            raise bad_request("tool_choice requires tools: there is no tool to use", "tool_choice")
        return Tools()
    return Tools(functions=functions, mode=mode, allowed=allowed, is_parallel=is_parallel)


def _read_tool(tool: object, place: str) -> Function:
    if not isinstance(tool, dict):
        raise bad_request(f"{place} must be an object with name and input_schema, got {show(tool)}", place)
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        raise bad_request(
            f"{place}.type must be 'custom': this server runs no tools itself, got {show(kind)}", f"{place}.type"
        )
    refuse_unknown_fields(tool, _TOOL_KEYS, place, takes_null=True)
    for key, neutral in (("defer_loading", False), ("allowed_callers", ["direct"])):
        if tool.get(key) not in (None, neutral):
            raise bad_request(
                f"{place}.{key} is not supported, except {neutral}, got {show(tool[key])}", f"{place}.{key}"
            )
    if not isinstance(tool.get("input_schema"), dict):
        where = f"{place}.input_schema"
        raise bad_request(f"{where} must be a JSON Schema, an object, got {show(tool.get('input_schema'))}", where)
    return make_function(
        tool.get("name"),
        tool.get("description"),
        tool["input_schema"],
        tool.get("strict"),
        place=place,
        schema_key="input_schema",
    )


def _read_choice(choice: object, functions: Sequence[Function]) -> tuple[Mode, frozenset[str] | None, bool]:
    """Return the mode, the names of the functions that may be called (None for all), and whether several calls may be
    made."""
    if choice is None:
        return "auto" if functions else "none", None, True
    if not isinstance(choice, dict):
        raise bad_request(f"tool_choice must be an object with a type, got {show(choice)}", "tool_choice")
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in _MODES:
        raise bad_request(f"tool_choice.type must be one of {', '.join(_MODES)}, got {show(kind)}", "tool_choice.type")
    keys = {"none": ("type",), "tool": ("type", "name", "disable_parallel_tool_use")}
    refuse_unknown_fields(choice, keys.get(kind, ("type", "disable_parallel_tool_use")), "tool_choice", takes_null=True)
    is_single = choice.get("disable_parallel_tool_use")
    if not isinstance(is_single, bool | None):
        where = "tool_choice.disable_parallel_tool_use"
        raise bad_request(f"{where} must be true or false, got {show(is_single)}", where)
    if kind != "tool":
        return _MODES[kind], None, not is_single
    name = check_choice(choice.get("name"), functions, "tool_choice.name")
    return "required", frozenset({name}), False
