"""A grammar in the form that the compiler takes, after its parts were checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from seesay.config.grammar import Grammar
from seesay.errors import ErrorCode, RequestError, show
from seesay.grammars.ebnf import rewrite_ebnf
from seesay.grammars.json_schema import rewrite_schema
from seesay.grammars.regex import rewrite_regex

_MAX_DEPTH = 32
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "any_text": (),
    "token": (),
    "token_triggered_tags": ("tags",),
    "const_string": (),
    "json_schema": (),
    "grammar": (),
    "regex": (),
    "sequence": ("elements",),
    "or": ("elements",),
    "tag": ("content",),
    "triggered_tags": ("tags",),
    "tags_with_separator": ("tags",),
    "optional": ("content",),
    "plus": ("content",),
    "star": ("content",),
    "repeat": ("content",),
}


def make_program(grammar: Grammar) -> Grammar:
    """Return `grammar` with a source that the compiler honours exactly; kinds are 'json_schema', 'regex', 'ebnf' and
    'structural_tag'. Raises `RequestError` that names what is not supported."""
    program = _write(grammar)
    _check_text(grammar.kind, program.source)
    return program


def _check_text(kind: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        why = f"the {kind} has the lone surrogate U+{ord(text[error.start]):04X}, which stands in no text"
        raise RequestError(ErrorCode.INVALID_REQUEST, f"response_format: {why}", "response_format") from None


def _write(grammar: Grammar) -> Grammar:
    if grammar.kind == "json_schema":
        return Grammar(kind="json_schema", source=rewrite_schema(grammar.source, is_open=grammar.is_open))
    if grammar.kind == "regex":
        return _make_regex(grammar.source)
    if grammar.kind == "choice":
        texts = list(dict.fromkeys(json.loads(grammar.source)))
        _check_text(grammar.kind, "".join(texts))
        options = " | ".join(map(_quote, texts))
        return Grammar(kind="ebnf", source=f"root ::= {options}")
    if grammar.kind == "structural_tag":
        return Grammar(kind="structural_tag", source=json.dumps(_write_tag(json.loads(grammar.source))))
    assert grammar.kind == "ebnf", grammar.kind
    return Grammar(kind="ebnf", source=rewrite_ebnf(grammar.source, "response_format"))


def _make_regex(pattern: str) -> Grammar:
    written = rewrite_regex(pattern, "response_format: the regular expression")
    if not written:
        return Grammar(kind="ebnf", source='root ::= ""')
    return Grammar(kind="regex", source=written)


def _quote(text: str) -> str:
    """Return a string literal of EBNF."""
    chars = (char if char.isascii() and char.isalnum() else f"\\U{ord(char):08x}" for char in text)
    return f'"{"".join(chars)}"'


def _write_tag(tag: dict[str, Any]) -> dict[str, Any]:
    if "format" in tag:
        return {"type": "structural_tag", "format": _write_format(tag["format"], "format", 0)}
    structures, triggers = tag["structures"], tag["triggers"]
    if not isinstance(structures, list) or not all(isinstance(item, dict) for item in structures):
        raise _refuse("structures", f"must be a list of objects, got {show(structures)}")
    tags = [
        {
            "type": "tag",
            "begin": item.get("begin"),
            "content": {"type": "json_schema", "json_schema": item.get("schema", True)},
            "end": item.get("end"),
        }
        for item in structures
    ]
    format = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
    return {"type": "structural_tag", "format": _write_format(format, "structures", 0)}


def _write_format(format: Any, place: str, depth: int) -> dict[str, Any]:
    if not isinstance(format, dict):
        raise _refuse(place, f"must be an object, got {show(format)}")
    if depth > _MAX_DEPTH:
        raise _refuse(place, f"is nested more than {_MAX_DEPTH} levels deep")
    kind = format.get("type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise _refuse(f"{place}.type", f"must be one of {', '.join(_FORMATS)}, got {show(kind)}")
    written = dict(format)
    if kind == "json_schema":
        if "style" in format and format["style"] != "json":
            raise _refuse(f"{place}.style", f"must be 'json', got {show(format['style'])}")
        schema = rewrite_schema(json.dumps(format.get("json_schema")), is_open=False)
        written["json_schema"] = json.loads(schema)
        written.setdefault("max_whitespace_cnt", 1)  # models may write nothing else until their answer is cut
    elif kind == "token":
        token_id = format.get("token")
        if format.keys() - {"type", "token"} or isinstance(token_id, bool) or not isinstance(token_id, int):
            raise _refuse(place, "of type token must have the id of a token and nothing else")
    elif kind == "regex":
        if format.keys() - {"type", "pattern"} or not isinstance(format.get("pattern"), str):
            raise _refuse(place, "of type regex must have a pattern and nothing else")
        written["pattern"] = rewrite_regex(format["pattern"], f"response_format.{place}.pattern")
    elif kind == "grammar" and isinstance(format.get("grammar"), str):
        written["grammar"] = rewrite_ebnf(format["grammar"], f"response_format.{place[:200]}.grammar")
    for key in _FORMATS[kind]:
        inner = format.get(key)
        if isinstance(inner, list):
            written[key] = [_write_format(item, f"{place}.{key}[{i}]", depth + 1) for i, item in enumerate(inner)]
        else:
            written[key] = _write_format(inner, f"{place}.{key}", depth + 1)
    return written


def _refuse(place: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"response_format.{place[:200]} {why}", "response_format")
