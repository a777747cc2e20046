"""Arguments one by one, for formats that do not write them as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seesay.config.grammar import HELD
from seesay.templates.parsers import json_text

ValueKind = Literal["text", "quoted", "json", "any"]
"""How a value is written without quotes around it: a plain text; a text that may be quoted as in JSON; JSON; JSON, or
else a text."""

_CONSTRAINTS = frozenset({"pattern", "format", "minLength", "maxLength", "enum", "const", "x-grammar"})
_SAYS_NOTHING = {"type", "title", "description", "$schema", "additionalProperties", HELD}
_DEFINITIONS = ("$defs", "definitions")
_MAX_REFERENCES = 16


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a function, and its schema, which has the definitions that it refers to."""

    name: str
    schema: object
    is_required: bool


def list_arguments(schema: Mapping[str, Any]) -> list[Argument]:
    """Return the arguments that the schema of an object names, as many of them required as it wants."""
    required = [name for name in schema.get("required") or () if isinstance(name, str)]
    named = _find_named(schema, required)
    needed = max(_count(schema, "minProperties") or 0, len(required))
    wanted = [*required, *(name for name in named if name not in required)]
    most = _count(schema, "maxProperties")
    kept = set(wanted if most is None else wanted[:most])
    must = set(wanted[:needed])
    return [
        Argument(name, as_part(value, schema, f"properties.{name[:60]}"), name in must)
        for name, value in named.items()
        if name in kept
    ]


def _find_named(schema: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """Return the schema of each argument that may be given: those of `properties`, and those that are only required."""
    properties = schema.get("properties")
    given = properties if isinstance(properties, Mapping) else {}
    named = {name: value for name, value in given.items() if value is not False}
    return named | {name: True for name in required if name not in named}


def takes_any(schema: Mapping[str, object]) -> bool:
    """Whether the schema of an object allows all arguments."""
    return schema.keys() <= _SAYS_NOTHING and schema.get("additionalProperties") in (None, True)


def resolve(schema: object) -> object:
    """Return the schema that a reference names, with the definitions that it refers to."""
    seen = 0
    while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str) and seen < _MAX_REFERENCES:
        schema = as_part(_follow(schema, schema["$ref"]), schema)
        seen += 1
    return schema


def find_kind(schema: object) -> ValueKind:
    """Return how a value of this schema is written where texts have no quotes."""
    schema = resolve(schema)
    if not isinstance(schema, Mapping):
        return "any"
    if schema.get("type") == "string":
        return "quoted" if schema.keys() & _CONSTRAINTS else "text"
    given = schema.get("type")
    types = given if isinstance(given, list) else [given]
    if given is None or "string" in types or not all(isinstance(kind, str) for kind in types):
        return "any"
    return "json"


def to_json(text: str, schema: object) -> str:
    """Return the JSON text of a value that was written as `text`. One that is not what the schema wants is a string."""
    kind = find_kind(schema)
    is_json = kind in ("json", "any") or (kind == "quoted" and text.lstrip().startswith('"'))
    if is_json and json_text.is_value(text):
        return text.strip()
    if kind == "json" and text.strip() in _PYTHON_WORDS:
        return _PYTHON_WORDS[text.strip()]
    return json.dumps(text, ensure_ascii=False)


_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def _count(schema: Mapping[str, object], key: str) -> int | None:
    value = schema.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def as_part(schema: object, root: Mapping[str, object], step: str = "") -> Any:
    """Return a part of a schema, with the definitions of the whole, and held as this is. step: from the place of the
    whole to that of the part; '' for what a reference names."""
    if not isinstance(schema, Mapping):
        return schema
    found = {key: root[key] for key in _DEFINITIONS if key in root and key not in schema}
    match root.get(HELD):
        case [str(place), strict, _, need]:
            found[HELD] = [f"{place}.{step}" if step else place, strict, False, need]
    return {**schema, **found}


def _follow(root: Mapping[str, object], pointer: str) -> object:
    """Return what a reference names; True, which allows everything, where that is not there."""
    found: object = root
    for part in pointer.split("/")[1:]:
        if not isinstance(found, Mapping) or part not in found:
            return True
        found = found[part]
    return found
