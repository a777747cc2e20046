"""OpenAI's custom tools, which take a text instead of arguments: for the model, functions with the argument `input`.

Its text may follow a grammar. Calls in a history and calls in an answer are written and read back here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from seesay.errors import RequestError, show
from seesay.grammars.quoted_text import KEYWORD, read_quoted
from seesay.serving.errors import bad_request
from seesay.serving.requests.tools import Function, make_function
from seesay.serving.requests.unknown_fields import refuse_unknown_fields
from seesay.templates.parsers.answer_parser import AnswerParser
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart

_INPUT = "input"
_HEAD = re.compile(rf'\s*\{{\s*"{_INPUT}"\s*:\s*"')
_PIECE = re.compile(r'[^"\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]')
_OPEN_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?")


def make_custom_tool(name: Any, description: Any, form: Any, *, place: str, keys: str | None) -> Function:
    """Return a custom tool from the values of a request. keys: the key of the object in `format` that has the syntax
    and the definition of a grammar; None where `format` itself has them. Raises `ApiError` 400 that names the value at
    fault."""
    text: dict[str, Any] = {"type": "string"}
    grammar = _read_format(form, f"{place}.format", keys)
    if grammar is not None:
        text[KEYWORD] = grammar
    parameters = {
        "type": "object",
        "properties": {_INPUT: text},
        "required": [_INPUT],
        "additionalProperties": False,
    }
    return make_function(name, description, parameters, True, place=place, takes_text=True)


def _read_format(form: object, where: str, keys: str | None) -> Mapping[str, Any] | None:
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") not in ("text", "grammar"):
        raise bad_request(f"{where} must be an object of type text or grammar, got {show(form)}", where)
    if form["type"] == "text":
        refuse_unknown_fields(form, ("type",), where)
        return None
    fields = {key: value for key, value in form.items() if key != "type"}
    if keys is not None:
        refuse_unknown_fields(fields, (keys,), where)
        where, fields = f"{where}.{keys}", fields.get(keys, {})
        if not isinstance(fields, dict):
            raise bad_request(f"{where} must be an object with syntax and definition, got {show(fields)}", where)
    refuse_unknown_fields(fields, ("syntax", "definition"), where)
    grammar = {"syntax": fields.get("syntax"), "definition": fields.get("definition")}
    try:
        read_quoted(grammar, where)
    except RequestError as error:
        raise bad_request(error.message, where) from error
    return grammar


def write_arguments(text: str) -> str:
    """Return the arguments of the call that gave a custom tool this text."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def read_text(arguments: str) -> str:
    """Return the text that a custom tool was called with. Arguments that are not those of one are the text."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(_INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


class CustomCalls:
    """A parser whose calls of custom tools have their text in place of arguments."""

    def __init__(self, parser: AnswerParser, names: Collection[str]) -> None:
        self._parser, self._names = parser, names
        self._texts: dict[int, _TextReader] = {}

    def feed(self, text: str) -> list[AnswerPart]:
        return [read for part in self._parser.feed(text) for read in self._read(part)]

    def finish(self) -> list[AnswerPart]:
        return [read for part in self._parser.finish() for read in self._read(part)]

    def _read(self, part: AnswerPart) -> list[AnswerPart]:
        if isinstance(part, CallStart) and part.name in self._names:
            self._texts[part.index] = _TextReader()
            return [CallStart(part.index, part.name, takes_text=True)]
        if not isinstance(part, CallArguments | CallEnd) or part.index not in self._texts:
            return [part]
        reader = self._texts[part.index]
        text = reader.feed(part.text) if isinstance(part, CallArguments) else reader.finish()
        texts: list[AnswerPart] = [CallArguments(part.index, text)] if text else []
        return texts if isinstance(part, CallArguments) else [*texts, part]


class _TextReader:
    """Reads the text out of a call's arguments while these arrive."""

    def __init__(self) -> None:
        self._pending = ""
        self._is_inside = self._is_over = False

    def feed(self, piece: str) -> str:
        """Add a piece of the arguments, and return what it adds to the text."""
        self._pending += piece
        if not self._is_inside:
            head = _HEAD.match(self._pending)
            if head is None:
                return ""
            self._is_inside, self._pending = True, self._pending[head.end() :]
        read: list[str] = []
        at = 0
        while not self._is_over and at < len(self._pending):
            found = _PIECE.match(self._pending, at)
            if self._pending[at] == '"':
                self._is_over = True
            if found is None or _OPEN_PAIR.fullmatch(self._pending, at):
                break
            read.append(found.group())
            at = found.end()
        self._pending = self._pending[at:]
        text: str = json.loads(f'"{"".join(read)}"', strict=False)
        return text.encode("utf-8", "replace").decode()

    def finish(self) -> str:
        """Return the text that `feed` did not: of arguments in another form."""
        return "" if self._is_inside else read_text(self._pending)
