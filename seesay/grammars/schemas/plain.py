"""The keywords that have no schemas in them, in a form that llguidance honours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from seesay.errors import RequestError, show
from seesay.grammars.schemas.formats import FORMATS, KNOWN, MAX_LENGTHS, NARROWER
from seesay.grammars.schemas.patterns import rewrite_pattern
from seesay.grammars.schemas.schema_fields import (
    Schema,
    SchemaObject,
    Spot,
    is_exact,
    read_count,
    read_number,
    read_types,
    refuse,
)

if TYPE_CHECKING:
    from seesay.grammars.schemas.json_schema import SchemaWriter

MAX_TEXT = 20_000
"""Characters of a constant text: all that is forced is looked at in one step."""
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
PLAIN = frozenset(["type", "enum", "const", "minLength", "maxLength", *_NUMBERS, "pattern", "format"])


def write_plain(writer: SchemaWriter, key: str, schema: SchemaObject, written: SchemaObject, spot: Spot) -> Schema:
    """Write one of the keywords. Returns what else must hold."""
    try:
        return _write_keyword(writer, key, schema, written, spot)
    except RequestError as error:
        writer.attempt(key, spot, error)
        return True


def _write_keyword(writer: SchemaWriter, key: str, schema: SchemaObject, written: SchemaObject, spot: Spot) -> Schema:
    if key == "type":
        types = read_types(schema, spot.place) or []
        written["type"] = types[0] if len(types) == 1 else types
    elif key in ("enum", "const"):
        _check_values(schema[key] if key == "enum" else [schema[key]], key, spot)
        written[key] = schema[key]
    elif key in ("minLength", "maxLength"):
        written[key] = read_count(schema, key, spot.place)
    elif key in _NUMBERS:
        _write_number(key, schema, written, spot)
    elif key == "pattern":
        written[key] = _write_pattern(writer, schema[key], spot, is_tried=writer.tries_patterns)
    else:
        return _write_format(writer, schema[key], written, spot)
    return True


def _write_number(key: str, schema: SchemaObject, written: SchemaObject, spot: Spot) -> None:
    """Before draft 6, `exclusiveMinimum: true` made `minimum` exclusive."""
    if isinstance(schema[key], bool) and key.startswith("exclusive"):
        other = key.removeprefix("exclusive").lower()
        if schema[key] and other in schema:
            written[key] = read_number(schema, other, spot.place)
        return
    value = read_number(schema, key, spot.place)
    if key == "multipleOf" and (value is None or value <= 0):
        raise refuse(spot.place, f"multipleOf must be a number above 0, got {show(schema[key])}")
    written[key] = value


def _write_pattern(writer: SchemaWriter, pattern: Any, spot: Spot, *, is_tried: bool = False) -> str:
    if isinstance(pattern, str) and pattern in writer.patterns:
        return writer.patterns[pattern]
    written = writer.patterns[pattern] = rewrite_pattern(pattern, spot.place, is_tried=is_tried)
    return written


def _write_format(writer: SchemaWriter, given: Any, written: SchemaObject, spot: Spot) -> Schema:
    """Write a format that is known. Others say nothing."""
    name = NARROWER.get(given, given) if isinstance(given, str) else ""
    if name in KNOWN:
        written["format"] = name
    elif name in FORMATS:
        most = {"maxLength": MAX_LENGTHS[name]} if name in MAX_LENGTHS else {}
        return {"pattern": _write_pattern(writer, FORMATS[name], spot), **most}
    return True


def _check_values(values: Any, key: str, spot: Spot) -> None:
    if not isinstance(values, list) or not values:
        raise refuse(spot.place, f"{key} must be a non-empty list, got {show(values)}")
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            _check_text(value, key, spot)
        elif isinstance(value, int | float) and not isinstance(value, bool) and not is_exact(value):
            raise refuse(spot.place, f"{key} with a number above 2 ** 53 is not supported, got {show(value)}")
        elif isinstance(value, dict | list):
            stack += value.values() if isinstance(value, dict) else value


def _check_text(text: str, key: str, spot: Spot) -> None:
    if len(text) > MAX_TEXT:
        raise refuse(spot.place, f"{key} has a text of {len(text)} characters; at most {MAX_TEXT} are taken")
    if bad := _CONTROL.search(text):
        raise refuse(spot.place, f"{key} with the control character U+{ord(bad[0]):04X} is not supported")
