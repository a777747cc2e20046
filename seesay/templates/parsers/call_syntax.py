"""How a grammar holds an answer to a format of calls: the formats of structural tags.

A format gives the texts around and between calls; here they become a tag. Special tokens in these texts are named by
their ids, for no text spells them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Form = dict[str, Any]
Piece = str | Form

MAX_HEADS = 16
"""Optional arguments that may be the first one of a call."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called, and the JSON Schema of its arguments, which are an object."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """All calls of an answer: `begin`, the calls with `separator` between them, `end`.

    calls: how each function is called. free: the form of answers that are not calls, where these do not go by a marker.
    lead: what may stand before either. preamble: text that may stand before calls where none are forced.
    """

    begin: str
    calls: Sequence[Sequence[Piece]]
    end: str = ""
    separator: str | None = None
    free: Form | None = None
    lead: Form | None = None
    preamble: Form | None = None


def read_functions(tools: Sequence[Mapping[str, Any]]) -> list[Function]:
    """Return the functions of tools, as chat completions have them."""
    found = []
    for tool in tools:
        function = tool["function"]
        schema = dict(function.get("parameters") or {"properties": {}})
        if not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}:
            schema["type"] = "object"
        found.append(Function(function["name"], schema if schema.get("type") == "object" else {"type": "object"}))
    return found


def json_form(schema: Any) -> Form:
    """Return the form of a JSON value."""
    return {"type": "json_schema", "json_schema": schema}


def regex_form(pattern: str) -> Form:
    return {"type": "regex", "pattern": pattern}


def sequence_form(pieces: Sequence[Piece]) -> Form:
    return {"type": "sequence", "elements": [_as_form(piece) for piece in pieces]}


def or_form(options: Sequence[Piece]) -> Form:
    return _as_form(options[0]) if len(options) == 1 else {"type": "or", "elements": list(map(_as_form, options))}


def optional_form(pieces: Sequence[Piece]) -> Form:
    return {"type": "optional", "content": sequence_form(pieces)}


def write_tag(
    syntax: CallSyntax, markers: Sequence[str], mode: str, special_ids: Mapping[str, int], *, is_parallel: bool
) -> Form:
    """Return the structural tag. markers: those that may begin a call. mode: 'required' has nothing but calls; 'auto'
    any text, and calls where one is begun."""
    call = or_form([sequence_form(pieces) for pieces in syntax.calls])
    calls: list[Piece] = [call]
    if is_parallel and syntax.separator is not None:
        calls.append({"type": "star", "content": sequence_form([syntax.separator, call])})
    whole: list[Piece] = [syntax.begin, *calls, syntax.end]
    lead = [] if syntax.lead is None else [syntax.lead]
    form: Form
    if mode == "required":
        form = sequence_form([*lead, *whole])
    elif syntax.free is not None:
        preamble = [] if syntax.preamble is None else [syntax.preamble]
        form = sequence_form([*lead, or_form([sequence_form([*preamble, *whole]), syntax.free])])
    else:
        form = _write_lazy(syntax, markers, calls, special_ids, stops=not is_parallel)
    return {"type": "structural_tag", "format": name_tokens(form, special_ids)}


def _write_lazy(
    syntax: CallSyntax, markers: Sequence[str], calls: Sequence[Piece], special_ids: Mapping[str, int], *, stops: bool
) -> Form:
    begins = [*special_ids, *markers]
    marker = next(marker for marker in begins if syntax.begin.startswith(marker))
    # A tag whose content has no bound must have an end. Calls without one begin with a marker each.
    content = [syntax.begin.removeprefix(marker), *(calls if syntax.end else calls[:1]), syntax.end]
    *pieces, last = _split_all(content, special_ids)
    end: object = ""
    if syntax.end:
        end = last["value"] if last["type"] == "const_string" else last
    else:
        pieces.append(last)
    tag = {"type": "tag", "begin": marker, "content": sequence_form(pieces), "end": end}
    if marker in special_ids:
        begin = {"type": "token", "token": special_ids[marker]}
        return {
            "type": "token_triggered_tags",
            "trigger_tokens": [special_ids[marker]],
            "tags": [tag | {"begin": begin}],
            "stop_after_first": stops,
        }
    return {"type": "triggered_tags", "triggers": [marker], "tags": [tag], "stop_after_first": stops}


def _as_form(piece: Piece) -> Form:
    return {"type": "const_string", "value": piece} if isinstance(piece, str) else piece


def _name_end(end: Any, special_ids: Mapping[str, int]) -> Any:
    """Return the token that begins or ends a tag, if it is written as the text of a special one; else what is given."""
    is_special = isinstance(end, str) and end in special_ids
    return {"type": "token", "token": special_ids[end]} if is_special else end


def name_tokens(form: Form, special_ids: Mapping[str, int]) -> Form:
    """Return a form in which special tokens are named by their ids, and empty texts are left out."""
    if form["type"] == "sequence":
        elements = _split_all(form["elements"], special_ids)
        return elements[0] if len(elements) == 1 else {**form, "elements": elements}
    written = dict(form)
    for key in ("elements", "tags"):
        if key in form:
            written[key] = [name_tokens(inner, special_ids) for inner in form[key]]
    if form["type"] == "tag":
        written |= {key: _name_end(form[key], special_ids) for key in ("begin", "end")}
    if "content" in form:
        written["content"] = name_tokens(form["content"], special_ids)
    return written


def _split_all(pieces: Sequence[Piece], special_ids: Mapping[str, int]) -> list[Form]:
    """Return the forms of pieces, with special tokens as forms of their own."""
    forms: list[Form] = []
    for piece in map(_as_form, pieces):
        forms += _split(piece["value"], special_ids) if piece["type"] == "const_string" else [piece]
    return [name_tokens(form, special_ids) for form in forms]


def _split(text: str, special_ids: Mapping[str, int]) -> list[Form]:
    markers = [re.escape(token) for token in sorted(special_ids, key=len, reverse=True)]
    pieces = re.split(f"({'|'.join(markers)})", text) if markers else [text]
    return [
        {"type": "token", "token": special_ids[piece]} if piece in special_ids else _as_form(piece)
        for piece in pieces
        if piece
    ]
