"""How the answers to one request are read: thoughts, text, and calls of functions; and the grammar that holds calls to
their schemas. Knows no API."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from seesay.config.grammar import read_grammar
from seesay.errors import ConfigError, RequestError
from seesay.grammars.program import make_program
from seesay.grammars.structural_tag import LENIENT
from seesay.install_command import install_command
from seesay.serving.errors import bad_request
from seesay.serving.requests.custom_tools import CustomCalls
from seesay.serving.requests.field_names import FieldNames
from seesay.serving.requests.tools import Function, Tools
from seesay.templates.parsers.answer_parser import AnswerParser
from seesay.templates.parsers.call_syntax import Form, json_form, or_form, regex_form
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart, ContentText, ReasoningText

if TYPE_CHECKING:
    from seesay.config.grammar import Grammar
    from seesay.engine.front.engine import AsyncEngine
    from seesay.templates.parsers.choose import AnswerFormat

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_ROOT_KEYWORDS = ("anyOf", "oneOf", "allOf", "$ref", "not", "if")
"""Keywords that say what the root is, where arguments are to be an object with named properties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReading:
    """How the answers to one request are read.

    tools: the functions that may be called. template_options: the option of the chat template that has them. grammar:
        the `response_format` that the answers follow, which holds calls to their schemas; None for free text. names:
        the client's, for errors; those of a grammar that was made of the tools name these. left_out: what it does not
        hold of the schemas of tools, with the places.
    """

    format: AnswerFormat
    tools: Tools
    template_options: Mapping[str, Any]
    grammar: Mapping[str, Any] | None
    names: FieldNames
    calls_alone: bool = False
    left_out: tuple[str, ...] = ()

    @classmethod
    def choose(
        cls,
        engine: AsyncEngine,
        tools: Tools,
        answer_format: Mapping[str, object] | None,
        names: FieldNames,
        *,
        brings_template: bool = False,
    ) -> AnswerReading:
        """Return the reading for a request with these tools and the `response_format` `answer_format`. names: the
        client's. brings_template: the request has a chat template of its own. Where both are given, an answer is calls
        alone or follows the format. Raises `ApiError` 400 for tools that the model's answers cannot call."""
        format, options = engine.answer_format, tools.for_template(None if brings_template else engine.chat_template)
        is_free = answer_format is None or answer_format.get("type") == "text"
        if not tools.callable:
            is_tag = answer_format is not None and answer_format.get("type") == "structural_tag"
            if format.marks_text and not (is_free or is_tag):
                answer_format = format.text_grammar(_read_form(answer_format, names))
            return cls(format=format, tools=tools, template_options=options, grammar=answer_format, names=names)
        if format.tools is None:
            raise bad_request(
                "tools: the format of this model's calls is not known; name it with --tool-call-parser",
                "tools",
                code="unsupported_parameter",
            )
        grammar, left_out = _make_grammar(format, tools, None if is_free else _read_form(answer_format, names))
        return cls(
            format=format,
            tools=tools,
            template_options=options,
            grammar=grammar,
            names=names.naming({"response_format": "tools"}),
            calls_alone=not is_free,
            left_out=left_out,
        )

    @property
    def is_plain(self) -> bool:
        """Whether all text of the answers is content, so that nothing has to be read."""
        return self.format.reasoning is None and not self.tools.callable and not self.format.marks_text

    @property
    def kept_tokens(self) -> tuple[str, ...]:
        """The special tokens that must stay in the text to be read."""
        return () if self.is_plain else self.format.kept_tokens

    def open(self, *, is_thinking: bool) -> AnswerParser:
        """Return a parser for one answer. is_thinking: whether the answer begins inside a thought."""
        parser = self.format.parser(
            tools=[function.as_json() for function in self.tools.callable],
            is_thinking=is_thinking,
            streams_calls=bool(self.tools.callable) and self.grammar is not None,
            calls_alone=self.calls_alone,
        )
        if self.tools.custom_names:
            parser = CustomCalls(parser, self.tools.custom_names)
        return parser if self.tools.is_parallel else _OneCall(parser)


class _OneCall:
    """A parser that leaves out all calls but the first."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[AnswerPart]:
        return [part for part in self._parser.feed(text) if _is_kept(part)]

    def finish(self) -> list[AnswerPart]:
        return [part for part in self._parser.finish() if _is_kept(part)]


def _is_kept(part: AnswerPart) -> bool:
    return isinstance(part, ContentText | ReasoningText) or part.index == 0


def _read_form(answer_format: Mapping[str, object] | None, names: FieldNames) -> Form:
    """Return the form of an answer that is not calls. Raises `ApiError` 400 for one that cannot be honoured."""
    try:
        grammar = _read_honoured(answer_format)
    except (ConfigError, RequestError) as error:
        raise names.explain(error) from error
    source = grammar.source
    if grammar.kind == "json_schema":
        return json_form(json.loads(source))
    if grammar.kind == "regex":
        return regex_form(source)
    if grammar.kind == "choice":
        return or_form(json.loads(source))
    if grammar.kind == "ebnf":
        return {"type": "grammar", "grammar": source}
    field = names.of("response_format")
    why = f"tools cannot be combined with a structural tag ({field}): send one of them, or tool_choice none"
    raise bad_request(why, "tools", code="unsupported_parameter")


def _read_honoured(answer_format: Mapping[str, object] | None) -> Grammar:
    """Return a grammar. Raises `ConfigError` or `RequestError` for one that is malformed or cannot be honoured."""
    grammar = read_grammar(answer_format)
    assert grammar is not None
    make_program(grammar)
    return grammar


def _make_grammar(
    format: AnswerFormat, tools: Tools, other: Form | None
) -> tuple[Mapping[str, object] | None, tuple[str, ...]]:
    """Return the grammar of the calls, and what it does not hold of their schemas. other: the form of an answer that is
    not calls; None for free text. Without the package that compiles grammars, calls are free where they are not forced.
    Raises `ApiError` 400 where they are, and for a schema that must be honoured and cannot be."""
    is_forced = tools.mode == "required"
    must_hold = is_forced or other is not None or tools.allowed is not None or bool(tools.custom_names)
    if importlib.util.find_spec("llguidance") is None:
        _check_freedom(tools, must_hold=must_hold)
        return None, ()
    if not must_hold and all(function.strict is False for function in tools.callable):
        return None, tuple(f"schema at {function.place}.{function.schema_key}" for function in tools.callable)
    schemas: list[dict[str, object]] = []
    left_out: list[str] = []
    for function in tools.callable:
        schema, others = _hold(function, is_forced=is_forced)
        schemas.append(schema)
        left_out += others
    mode: Literal["required", "auto"] = "required" if is_forced else "auto"
    return format.call_grammar(schemas, mode, tools.is_parallel, other), tuple(left_out)


def _check_freedom(tools: Tools, *, must_hold: bool) -> None:
    """Raise `ApiError` 400 where calls have to be held, for which a package is missing."""
    if must_hold:
        what = "forced and allowed functions, custom tools, and tools beside a grammar, need llguidance"
        name = "tools" if tools.custom_names else "tool_choice"
        raise bad_request(f"{name}: {what}: {install_command('grammar')}", name)


def _hold(function: Function, *, is_forced: bool) -> tuple[dict[str, object], Sequence[str]]:
    """Return the function with a schema that a grammar can honour, and what that leaves out of its own: nothing if it
    is strict, or forced and does not say; else as little as possible."""
    held = function.as_json()
    if function.takes_text:  # whose grammar was read with the request
        return held, ()
    root = next((key for key in _ROOT_KEYWORDS if key in function.parameters), None)
    where = f"{function.place}.{function.schema_key}"
    is_held = bool(function.strict) or (is_forced and function.strict is None)
    if root is not None and is_held:
        what = "strict" if function.strict else "a forced call"
        why = f"{where}.{root} is not supported with {what}: the root of the schema must itself be an object with"
        raise bad_request(f"{why} properties", f"{where}.{root}")
    try:
        if function.strict is not False:
            _read_honoured({"type": "json_schema", "schema": held["function"]["parameters"]})
            return held, ()
    except (ConfigError, RequestError) as error:
        if is_held:
            names = FieldNames(options={"response_format": where, "response_format.schema": where})
            raise names.explain(error) from error
    held["function"]["parameters"], left_out = _hold_leniently(function.parameters)
    return held, [each.replace(" at $", f" at {where}", 1) for each in left_out]


def _hold_leniently(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Return a schema that is held as far as it can be, and the keywords that are not, with their places."""
    kept = {key: value for key, value in schema.items() if key not in _ROOT_KEYWORDS}
    try:
        grammar = read_grammar({"type": "json_schema", "schema": kept, "strict": False})
        assert grammar is not None
        left_out = make_program(grammar).left_out
    except (ConfigError, RequestError):
        return _ANY_OBJECT, ["schema at $"]
    return {**kept, LENIENT: True}, [*(f"{key} at $" for key in schema if key in _ROOT_KEYWORDS), *left_out]


# --- what was read ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """A call of a function. `arguments` is JSON text, cut off unless `is_complete`; of a custom tool, which
    `takes_text`, its text."""

    name: str
    arguments: str = ""
    is_complete: bool = False
    takes_text: bool = False


@dataclass(slots=True)
class ReadAnswer:
    """A complete answer, as it was read."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def read(cls, reading: AnswerReading, text: str, *, is_thinking: bool) -> ReadAnswer:
        """Read the text of an answer."""
        if reading.is_plain:
            return cls(content=text)
        parser = reading.open(is_thinking=is_thinking)
        answer = cls()
        answer.add(parser.feed(text))
        answer.add(parser.finish())
        return answer

    def add(self, parts: Sequence[AnswerPart]) -> None:
        """Add the next parts of the answer."""
        for part in parts:
            match part:
                case ContentText():
                    self.content += part.text
                case ReasoningText():
                    self.reasoning += part.text
                case CallStart():
                    self.calls.append(Call(part.name, takes_text=part.takes_text))
                case CallArguments():
                    self.calls[part.index].arguments += part.text
                case CallEnd():
                    self.calls[part.index].is_complete = True
