"""How the answers to one request are read: thoughts, text, and calls of functions; and the grammar that holds calls to
their schemas. Knows no API."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from seesay.config.grammar import HELD, NEEDED, OPTIONAL, read_grammar
from seesay.errors import ConfigError
from seesay.grammars.schemas.holding import ANSWER, ROOT_KEYWORDS
from seesay.install_command import install_command
from seesay.serving.errors import bad_request
from seesay.serving.requests.custom_tools import CustomCalls
from seesay.serving.requests.field_names import FieldNames
from seesay.serving.requests.tools import Function, Tools
from seesay.templates.parsers.answer_parser import AnswerParser
from seesay.templates.parsers.call_syntax import Form, json_form, or_form, regex_form
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart, ContentText, ReasoningText

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.templates.parsers.choose import AnswerFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReading:
    """How the answers to one request are read.

    tools: the functions that may be called. template_options: the option of the chat template that has them. grammar:
        the `response_format` that the answers follow, which holds calls to their schemas; None for free text. names:
        the client's, for errors; those of a grammar that was made of the tools name these. left_out: schemas of tools
        that no grammar holds, with their places.
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
                names = names.naming(_name_answer(names))
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
            names=names.naming({**_name_tools(tools), **_name_answer(names)}),
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
        if self.tools.mode == "required" and self.grammar is not None:
            parser = _NoText(parser)
        return parser if self.tools.is_parallel else _OneCall(parser)


class _NoText:
    """A parser of answers that a grammar holds to calls: what is read as text is a call that was cut off before its
    name ended, and is left out."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[AnswerPart]:
        return [part for part in self._parser.feed(text) if not isinstance(part, ContentText)]

    def finish(self) -> list[AnswerPart]:
        return [part for part in self._parser.finish() if not isinstance(part, ContentText)]


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


def _name_tools(tools: Tools) -> dict[str, str]:
    """Return what errors call the grammar of tools, and the schema of one of them."""
    roots = {function.place.partition("[")[0] for function in tools.callable}
    return {"response_format": "tools", **{f"response_format.{root}": root for root in roots}}


def _name_answer(names: FieldNames) -> dict[str, str]:
    """Return what errors call the format of answers that are not calls, as a part of the whole grammar."""
    parts = (f"response_format.{ANSWER}", "response_format.format")
    return dict.fromkeys(parts, names.of("response_format"))


def _read_form(answer_format: Mapping[str, object] | None, names: FieldNames) -> Form:
    """Return the form of an answer that is not calls. Raises `ApiError` 400 for one that is malformed."""
    try:
        grammar = read_grammar(answer_format)
    except ConfigError as error:
        raise names.explain(error) from error
    assert grammar is not None
    source = grammar.source
    if grammar.kind == "json_schema":
        return json_form(_hold(json.loads(source), None, strict=not grammar.is_open))
    if grammar.kind == "regex":
        return regex_form(source)
    if grammar.kind == "choice":
        return or_form(json.loads(source))
    if grammar.kind == "ebnf":
        return {"type": "grammar", "grammar": source}
    field = names.of("response_format")
    why = f"tools cannot be combined with a structural tag ({field}): send one of them, or tool_choice none"
    raise bad_request(why, "tools", code="unsupported_parameter")


def _restricts_calls(tools: Tools) -> bool:
    """Return whether a request says more of its calls than that they may come."""
    return tools.mode == "required" or tools.allowed is not None or bool(tools.custom_names)


def _make_grammar(
    format: AnswerFormat, tools: Tools, other: Form | None
) -> tuple[Mapping[str, object] | None, tuple[str, ...]]:
    """Return the grammar of the calls, and the schemas that it does not hold at all. other: the form of an answer that
    is not calls; None for free text. Without the package that compiles grammars, calls are free where they are not
    forced. Raises `ApiError` 400 where they are."""
    is_forced = tools.mode == "required"
    must_hold = other is not None or _restricts_calls(tools)
    if importlib.util.find_spec("llguidance") is None:
        _check_freedom(tools, must_hold=must_hold)
        return None, ()
    if not must_hold and all(function.strict is False for function in tools.callable):
        return None, tuple(f"schema at {function.place}.{function.schema_key}" for function in tools.callable)
    held = [_hold_function(function, is_forced=is_forced) for function in tools.callable]
    mode: Literal["required", "auto"] = "required" if is_forced else "auto"
    return format.call_grammar(held, mode, tools.is_parallel, other), ()


def _check_freedom(tools: Tools, *, must_hold: bool) -> None:
    """Raise `ApiError` 400 where calls have to be held, for which a package is missing."""
    if must_hold:
        what = "forced and allowed functions, custom tools, and tools beside a grammar, need llguidance"
        name = "tools" if tools.custom_names else "tool_choice"
        raise bad_request(f"{name}: {what}: {install_command('grammar')}", name)


def _hold_function(function: Function, *, is_forced: bool) -> dict[str, Any]:
    """Return the function with a schema that says how a grammar is to hold it: exactly if it is strict, or forced and
    does not say."""
    held = function.as_json()
    if function.takes_text:  # whose grammar was read with the request
        return held
    where = f"{function.place}.{function.schema_key}"
    strict = True if is_forced and function.strict is None else function.strict
    root = next((key for key in ROOT_KEYWORDS if key in function.parameters), None)
    if root is not None and strict:
        what = "strict" if function.strict else "a forced call"
        why = f"{where}.{root} is not supported with {what}: the root of the schema must itself be an object with"
        raise bad_request(f"{why} properties", f"{where}.{root}")
    held["function"]["parameters"] = _hold(
        function.parameters, where, strict=strict, is_whole=True, is_optional=not (is_forced or strict)
    )
    return held


def _hold(
    schema: Any, place: str | None, *, strict: bool | None, is_whole: bool = False, is_optional: bool = False
) -> Any:
    need = OPTIONAL if is_optional else NEEDED
    return {**schema, HELD: [place, strict, is_whole, need]} if isinstance(schema, Mapping) else schema


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
