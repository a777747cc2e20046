"""The tools and tool choices of OpenAI's chat completions and Responses API: models for the published schemas, and the
functions that read them into `Tools`, whose errors name the field at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SkipValidation

from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.requests.custom_tools import make_custom_tool
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
_OBJECT = {"properties": {"type": {"const": "object"}}}
Parameters = Annotated[dict[str, Any], Field(json_schema_extra=_OBJECT)]
_MODES: Mapping[str, Mode] = {"none": "none", "auto": "auto", "required": "required"}
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_CUSTOM_KEYS = ("name", "description", "format")
TOOL_TYPES = ("function", "custom")
HAS_CHOICE = {
    "if": {
        "required": ["tool_choice"],
        "properties": {"tool_choice": {"not": {"enum": [None, "none", "auto"]}}},
    },
    "then": {"required": ["tools"], "properties": {"tools": {"type": "array", "minItems": 1}}},
}
"""JSON schema of a request whose `tool_choice` forces a call only where there are tools."""


# --- models ----------------------------------------------------------------------------------------------------------


class FunctionFields(StrictModel):
    """parameters: a JSON Schema of type object. strict: whether arguments must be valid; false lets the model write any
    object."""

    name: Name
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class ChatTool(StrictModel):
    type: Literal["function"]
    function: FunctionFields


class TextFormat(StrictModel):
    type: Literal["text"]


class TextGrammar(StrictModel):
    """syntax: `definition` is a grammar of Lark with the rule `start`, or a regular expression of Python."""

    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1)


class ChatGrammarFormat(StrictModel):
    type: Literal["grammar"]
    grammar: TextGrammar


class ResponseGrammarFormat(TextGrammar):
    type: Literal["grammar"]


class ChatCustomFields(StrictModel):
    """format: of the text that the tool takes; default: any."""

    name: Name
    description: str | None = None
    format: Annotated[TextFormat | ChatGrammarFormat, Field(discriminator="type")] | None = None


class ChatCustomTool(StrictModel):
    type: Literal["custom"]
    custom: ChatCustomFields


class NamedFunction(StrictModel):
    name: Name


class ChatNamedTool(StrictModel):
    type: Literal["function"]
    function: NamedFunction


class ChatNamedCustomTool(StrictModel):
    type: Literal["custom"]
    custom: NamedFunction


_ChatNamed = Annotated[ChatNamedTool | ChatNamedCustomTool, Field(discriminator="type")]


class AllowedTools(StrictModel):
    mode: Literal["auto", "required"]
    tools: list[_ChatNamed] = Field(min_length=1)


class ChatAllowedTools(StrictModel):
    """Only these may be called; the prompt has them all."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class ResponseTool(FunctionFields):
    type: Literal["function"]


class ResponseCustomTool(StrictModel):
    """format: of the text that the tool takes; default: any."""

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: Annotated[TextFormat | ResponseGrammarFormat, Field(discriminator="type")] | None = None


class ResponseNamedTool(StrictModel):
    type: Literal["function", "custom"]
    name: Name


class ResponseAllowedTools(StrictModel):
    """Only these may be called; the prompt has them all."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ResponseNamedTool] = Field(min_length=1)


_Mode = Literal["none", "auto", "required"]
_ChatAnyTool = Annotated[ChatTool | ChatCustomTool, Field(discriminator="type")]
_ResponseAnyTool = Annotated[ResponseTool | ResponseCustomTool, Field(discriminator="type")]
ChatTools = SkipValidation[Annotated[list[_ChatAnyTool], Field(max_length=MAX_FUNCTIONS)]]
ChatToolChoice = SkipValidation[
    _Mode | Annotated[ChatNamedTool | ChatNamedCustomTool | ChatAllowedTools, Field(discriminator="type")]
]
ResponseTools = SkipValidation[Annotated[list[_ResponseAnyTool], Field(max_length=MAX_FUNCTIONS)]]
ResponseToolChoice = SkipValidation[
    _Mode | Annotated[ResponseNamedTool | ResponseAllowedTools, Field(discriminator="type")]
]


# --- reading ---------------------------------------------------------------------------------------------------------


def read_chat_tools(tools: object, choice: object, is_parallel: bool | None) -> Tools:
    """Return the tools of a chat request. Raises `ApiError` 400."""
    return _read_tools(tools, choice, is_parallel, is_nested=True)


def read_response_tools(tools: object, choice: object, is_parallel: bool | None) -> Tools:
    """Return the tools of a request for a response. Raises `ApiError` 400."""
    return _read_tools(tools, choice, is_parallel, is_nested=False)


def _read_tools(tools: object, choice: object, is_parallel: bool | None, *, is_nested: bool) -> Tools:
    """is_nested: the fields of a tool are in an object, whose key is its type; else the tool itself has them."""
    functions = _read_functions(tools, is_nested)
    mode, allowed = _read_choice(choice, functions, is_nested)
    is_named = isinstance(choice, dict) and choice.get("type") != "allowed_tools"  # which means one call
    if not functions:
        if mode == "required":
            raise bad_request("tool_choice requires tools: there is no function to call", "tool_choice")
        return Tools()
    return Tools(functions=functions, mode=mode, allowed=allowed, is_parallel=is_parallel is not False and not is_named)


def _read_functions(tools: object, is_nested: bool) -> tuple[Function, ...]:
    if tools is not None and not isinstance(tools, list):
        raise bad_request(f"tools must be a list, got {show(tools)}", "tools")
    if tools and len(tools) > MAX_FUNCTIONS:
        raise bad_request(f"tools may have at most {MAX_FUNCTIONS} functions, got {len(tools)}", "tools")
    return check_functions([_read_tool(tool, f"tools[{index}]", is_nested) for index, tool in enumerate(tools or ())])


def _read_tool(tool: object, place: str, is_nested: bool) -> Function:
    is_custom = isinstance(tool, dict) and tool.get("type") == "custom"
    known = _CUSTOM_KEYS if is_custom else _FUNCTION_KEYS
    fields, place = _read_typed(tool, place, TOOL_TYPES, known, is_nested)
    values = [fields.get(key) for key in known]
    if is_custom:
        return make_custom_tool(*values, place=place, keys="grammar" if is_nested else None)
    return make_function(*values, place=place)


def _read_choice(choice: object, functions: Sequence[Function], is_nested: bool) -> tuple[Mode, frozenset[str] | None]:
    """Return the mode, and the names of the functions that may be called, None for all."""
    if choice is None:
        return "auto" if functions else "none", None
    if isinstance(choice, str) and choice in _MODES:
        return _MODES[choice], None
    if not isinstance(choice, dict):
        raise bad_request(
            f"tool_choice must be one of {', '.join(_MODES)}, or an object with a type, got {show(choice)}",
            "tool_choice",
        )
    if choice.get("type") == "allowed_tools":
        return _read_allowed(choice, functions, is_nested)
    types = (*TOOL_TYPES, "allowed_tools")
    return "required", frozenset({_read_name(choice, "tool_choice", types, functions, is_nested)})


def _read_allowed(
    choice: Mapping[str, object], functions: Sequence[Function], is_nested: bool
) -> tuple[Mode, frozenset[str]]:
    place, fields = "tool_choice", choice
    keys: tuple[str, ...] = ("type", "mode", "tools")
    if is_nested:
        refuse_unknown_fields(choice, ("type", "allowed_tools"), place)
        place, keys = "tool_choice.allowed_tools", ("mode", "tools")
        fields = _as_object(choice.get("allowed_tools"), place, "mode and tools")
    refuse_unknown_fields(fields, keys, place)
    mode, tools = fields.get("mode"), fields.get("tools")
    if mode not in ("auto", "required"):
        raise bad_request(f"{place}.mode must be auto or required, got {show(mode)}", f"{place}.mode")
    if not isinstance(tools, list) or not tools:
        raise bad_request(f"{place}.tools must be a list with at least one tool, got {show(tools)}", f"{place}.tools")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"{place}.tools[{index}]"
        names.add(_read_name(tool, where, TOOL_TYPES, functions, is_nested))
    return _MODES[mode], frozenset(names)


def _read_name(value: object, place: str, types: Sequence[str], functions: Sequence[Function], is_nested: bool) -> str:
    fields, place = _read_typed(value, place, types, ("name",), is_nested)
    is_custom = isinstance(value, dict) and value["type"] == "custom"
    return check_choice(fields.get("name"), [f for f in functions if f.takes_text == is_custom], f"{place}.name")


def _read_typed(
    value: object, place: str, types: Sequence[str], keys: Sequence[str], is_nested: bool
) -> tuple[Mapping[str, object], str]:
    """Return the fields of `value`, an object of one of `types` that has `keys` at most, and their place."""
    if not isinstance(value, dict):
        raise bad_request(f"{place} must be an object with a type, got {show(value)}", place)
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in types:
        raise bad_request(f"{place}.type must be {' or '.join(map(repr, types))}, got {show(kind)}", f"{place}.type")
    if not is_nested:
        refuse_unknown_fields(value, ("type", *keys), place)
        if "name" not in value:
            why = f"{place}.name is missing (in /v1/chat/completions it stands inside of {kind})"
            raise bad_request(why, f"{place}.name", code="missing_required_parameter")
        return value, place
    refuse_unknown_fields(value, ("type", kind), place)
    place = f"{place}.{kind}"
    other = "" if kind in value else " (in /v1/responses it stands beside the type)"
    fields = _as_object(value.get(kind), place, f"a name{other}")
    refuse_unknown_fields(fields, keys, place)
    return fields, place


def _as_object(value: object, place: str, keys: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise bad_request(f"{place} must be an object with {keys}, got {show(value)}", place)
    return value
