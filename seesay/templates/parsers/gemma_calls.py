"""Calls of Gemma 4: `call:NAME{key:value,…}` between markers, with a token of its own for the quotes of texts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seesay.config.grammar import HELD
from seesay.templates.parsers import json_text
from seesay.templates.parsers.arguments import Argument, as_part, find_kind, list_arguments, resolve, takes_any, to_json
from seesay.templates.parsers.call_sink import MAX_NAME_CHARS, CallSink
from seesay.templates.parsers.call_syntax import (
    CallSyntax,
    Function,
    Piece,
    json_form,
    optional_form,
    or_form,
    sequence_form,
)
from seesay.templates.parsers.literals import Literals, write_arguments
from seesay.templates.parsers.text_source import MalformedError, TextSource, Waiting
from seesay.templates.parsers.tool_format import ToolFormat

_BEGIN, _END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME = re.compile(r"[^\s<>{}\[\]:,]+")
_BARE = re.compile(r"[^<>{}\[\],\"\n]+")
_MAX_BARE_CHARS = 4000
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.\-]+")
_MAX_FORM_DEPTH = 3
_OBJECT_KEYS = frozenset({"type", "properties", "required", "additionalProperties"})
_ARRAY_KEYS = frozenset({"type", "items"})
_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$defs", "definitions", HELD})


@dataclass(frozen=True, slots=True)
class GemmaCalls(ToolFormat):
    """`<|tool_call>call:NAME{key:value,…}<tool_call|>` for each call. Texts stand between two `<|"|>` as they are, keys
    have no quotes, all else is JSON; texts and keys in JSON's quotes are read, too."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (_BEGIN,)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (_BEGIN, _END, _QUOTE)

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        yield from source.expect(_BEGIN)
        yield from source.skip_space()
        yield from source.expect("call:")
        yield from source.skip_space()
        name = yield from source.read_up_to(_NAME, MAX_NAME_CHARS)
        yield from source.skip_space()
        if (yield from source.peek()) != "{":
            raise MalformedError
        sink.start_call(name)
        sink.add_arguments((yield from _LITERALS.read(source)))
        yield from source.skip_space()
        yield from source.expect_or_end(_END)
        sink.end_call()

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        return CallSyntax(
            begin=f"{_BEGIN}call:",
            calls=[[function.name, *_write_object(function.schema, 0)] for function in functions],
            end=_END,
            separator=f"{_END}{_BEGIN}call:",
        )


def _read_key(source: TextSource) -> Waiting[str]:
    if (yield from source.starts_with(_QUOTE)) or (yield from source.starts_with('"')):
        return (yield from _read_scalar(source))
    key = yield from source.read_up_to(_NAME, MAX_NAME_CHARS)
    if not key:
        raise MalformedError
    return json.dumps(key, ensure_ascii=False)


def _read_scalar(source: TextSource) -> Waiting[str]:
    pieces: list[str] = []
    if (yield from source.try_read(_QUOTE)):
        if (yield from source.read_until([_QUOTE], pieces.append)) is None:
            raise MalformedError
        yield from source.expect(_QUOTE)
        return json.dumps("".join(pieces), ensure_ascii=False)
    if (yield from source.starts_with('"')):
        yield from json_text.read_string(source, pieces.append)
        return "".join(pieces)
    text = (yield from source.read_up_to(_BARE, _MAX_BARE_CHARS)).strip()
    if not text:
        raise MalformedError
    return "null" if text == "None" else to_json(text, True)


_LITERALS = Literals(brackets={"{": "}", "[": "]"}, read_key=_read_key, read_scalar=_read_scalar)


# --- grammar ----------------------------------------------------------------------------------------------------------


def _write_value(given: object, depth: int) -> Piece:
    """Return the form of a value. What has no form of Gemma's own is written as JSON."""
    schema = resolve(given)
    if find_kind(schema) == "text":
        return {"type": "tag", "begin": _QUOTE, "content": {"type": "any_text"}, "end": _QUOTE}
    if not isinstance(schema, dict) or depth >= _MAX_FORM_DEPTH:
        return json_form(given)
    words = _list_words(schema)
    if words:
        return or_form([sequence_form([word]) for word in words])
    keys = schema.keys() - _NOTES
    if schema.get("type") == "object" and keys <= _OBJECT_KEYS:
        return sequence_form(_write_object(schema, depth + 1))
    if schema.get("type") == "array" and keys == _ARRAY_KEYS:
        item = _write_value(as_part(schema["items"], schema, "items"), depth + 1)
        more: Piece = {"type": "star", "content": sequence_form([",", item])}
        return sequence_form(["[", optional_form([item, more]), "]"])
    return json_form(given)


def _list_words(schema: dict[str, Any]) -> list[str]:
    """Return the texts of an enumeration as they are written, if it has nothing else."""
    values = schema.get("enum")
    if (
        not isinstance(values, list)
        or schema.keys() - _NOTES - {"type", "enum"}
        or schema.get("type", "string") != "string"
    ):
        return []
    if not all(isinstance(value, str) and _QUOTE not in value for value in values):
        return []
    return [f"{_QUOTE}{value}{_QUOTE}" for value in values]


def _write_object(schema: Any, depth: int) -> list[Piece]:
    if takes_any(schema):
        return [json_form(schema)]

    def write_pair(argument: Argument) -> list[Piece]:
        is_plain = _PLAIN_KEY.fullmatch(argument.name) is not None
        key = argument.name if is_plain else json.dumps(argument.name, ensure_ascii=False)
        return [f"{key}:", _write_value(argument.schema, depth)]

    return ["{", *write_arguments(list_arguments(schema), write_pair, ","), "}"]


GEMMA4 = GemmaCalls()
