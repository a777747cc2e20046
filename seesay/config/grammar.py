"""The grammar that an answer must follow, read from the forms in which requests give one.

Knows the forms only: what a schema or a regular expression may contain is checked where it is compiled
(`seesay.grammars`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seesay.errors import ConfigError, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The rules that the text of an answer must follow.

    kind: 'json_schema', 'regex', 'ebnf' (or Lark), 'choice' (`source` is a JSON list of strings), 'structural_tag', or
    'lark', of programs. is_open: objects of the schema may have properties that it does not name, where it does not
    forbid them, and what no grammar can hold is left out. left_out: of a program, what it does not hold, and where.
    is_slow: a program that takes long to compile.
    """

    kind: str
    source: str
    is_open: bool = False
    left_out: tuple[str, ...] = ()
    is_slow: bool = field(default=False, compare=False)


HELD = "x-held"
"""A keyword of a schema in a structural tag, `[place, strict, whether it is of all arguments, need]`: its place in the
request, for errors (None: it is that of the answer), and how it is held: exactly (True), exactly where a grammar can
and else as far as one can (None), or as far as one can with objects open (False). need: of `HELD_NEEDS`."""
HELD_NEEDS = NEEDED, OPTIONAL, LEFT_OUT = "needed", "optional", "left out"
"""A schema that is optional is left out where the compiler refuses it, such as one that allows no value."""
MAX_SOURCE_CHARS = 1 << 18
"""Most characters of a schema, a regular expression, a list of choices or a grammar."""
MAX_CHOICES = 4096

_ANNOTATIONS = frozenset({"type", "name", "description"})


def read_grammar(form: Mapping[str, object] | None) -> Grammar | None:
    """Return the grammar that `response_format` asks for; None for free text. Raises `ConfigError` for a form that is
    not known, and names the key at fault.

    The forms, by their `type`: `text`; `json_object`, with an optional `schema`; `json_schema` with `json_schema`
    (`{name, schema, strict}`), or with `schema` and `strict` beside the type; `boxes`; `regex_schema` or `regex`;
    `grammar` (EBNF); `choice`; `structural_tag`, with `format` or with the older `structures` and `triggers`.
    """
    if form is None:
        return None
    kind = form.get("type")
    if not isinstance(kind, str) or kind not in _READERS:
        raise ConfigError(f"response_format.type must be one of {', '.join(map(repr, _READERS))}, got {show(kind)}")
    read, keys = _READERS[kind]
    for key in form:
        if key not in keys and key not in _ANNOTATIONS:
            raise ConfigError(f"response_format.{str(key)[:60]} is not supported with type {kind!r}")
    grammar = read(form)
    if grammar is not None and len(grammar.source) > MAX_SOURCE_CHARS:
        raise ConfigError(
            f"response_format has {len(grammar.source)} characters of {grammar.kind}; at most {MAX_SOURCE_CHARS} are "
            "taken"
        )
    return grammar


def _read_object(form: Mapping[str, object]) -> Grammar:
    if form.get("schema") is not None:
        return _make_schema(form["schema"], "response_format.schema", form.get("strict"))
    return Grammar(kind="json_schema", source='{"type": "object", "additionalProperties": true}')


def _read_schema(form: Mapping[str, Any]) -> Grammar:
    where, inner = "response_format", form
    if form.get("json_schema") is not None:
        where, inner = "response_format.json_schema", form["json_schema"]
        if isinstance(inner, str):  # the schema itself
            return _make_schema(inner, where, form.get("strict"))
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{where} must be an object with a schema, got {show(inner)}")
        for key in inner:
            if key not in ("name", "description", "schema", "strict"):
                raise ConfigError(f"{where}.{str(key)[:60]} is not supported")
    if inner.get("schema") is None:
        raise ConfigError(f"{where}.schema is required")
    return _make_schema(inner["schema"], f"{where}.schema", inner.get("strict"))


def _make_schema(schema: object, where: str, strict: object) -> Grammar:
    """`schema` is a JSON Schema, or JSON text of one, or a pydantic model."""
    if strict is not None and not isinstance(strict, bool):
        raise ConfigError(f"{where.rpartition('.')[0]}.strict must be true or false, got {show(strict)}")
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if isinstance(schema, str):
        schema = _parse(schema, where)
    if not isinstance(schema, Mapping | bool):
        raise ConfigError(f"{where} must be a JSON Schema, got {show(schema)}")
    return Grammar(kind="json_schema", source=_dump(schema, where), is_open=strict is False)


_BOXES = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "bbox_2d": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 4, "maxItems": 4},
            "label": {"type": "string"},
        },
        "required": ["bbox_2d", "label"],
        "additionalProperties": False,
    },
}


def _read_boxes(form: Mapping[str, object]) -> Grammar:
    del form
    return Grammar(kind="json_schema", source=json.dumps(_BOXES))


def _read_text(key: str, kind: str) -> Callable[[Mapping[str, Any]], Grammar]:
    def read(form: Mapping[str, object]) -> Grammar:
        value = form.get(key)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"response_format.{key} must be a non-empty string, got {show(value)}")
        return Grammar(kind=kind, source=value)

    return read


def _read_choice(form: Mapping[str, object]) -> Grammar:
    choices = form.get("choice")
    if not isinstance(choices, Sequence) or isinstance(choices, str | bytes) or not choices:
        raise ConfigError(f"response_format.choice must be a list of non-empty strings, got {show(choices)}")
    for index, choice in enumerate(choices[: MAX_CHOICES + 1]):
        if not isinstance(choice, str) or not choice:
            raise ConfigError(f"response_format.choice[{index}] must be a non-empty string, got {show(choice)}")
    if len(choices) > MAX_CHOICES:
        raise ConfigError(f"response_format.choice has {len(choices)} strings; at most {MAX_CHOICES} are taken")
    return Grammar(kind="choice", source=_dump(list(choices), "response_format.choice"))


def _read_tag(form: Mapping[str, object]) -> Grammar:
    tag = {key: form[key] for key in ("format", "structures", "triggers") if form.get(key) is not None}
    if set(tag) not in ({"format"}, {"structures", "triggers"}):
        raise ConfigError("response_format of type 'structural_tag' must have format, or structures and triggers")
    return Grammar(kind="structural_tag", source=_dump(tag, "response_format"))


def _parse(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} must be JSON: {str(error)[:100]}") from error


def _dump(value: object, where: str) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, default=_as_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} must be plain JSON: {str(error)[:100]}") from error


def _as_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_READERS: Mapping[str, tuple[Callable[[Mapping[str, Any]], Grammar | None], frozenset[str]]] = {
    "text": (lambda _: None, frozenset()),
    "json_object": (_read_object, frozenset({"schema", "strict"})),
    "json_schema": (_read_schema, frozenset({"json_schema", "schema", "strict"})),
    "boxes": (_read_boxes, frozenset()),
    "regex_schema": (_read_text("regex_schema", "regex"), frozenset({"regex_schema"})),
    "regex": (_read_text("regex", "regex"), frozenset({"regex"})),
    "grammar": (_read_text("grammar", "ebnf"), frozenset({"grammar"})),
    "choice": (_read_choice, frozenset({"choice"})),
    "structural_tag": (_read_tag, frozenset({"format", "structures", "triggers"})),
}
FORM_TYPES = tuple(_READERS)
