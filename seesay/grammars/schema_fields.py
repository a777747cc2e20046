"""The fields of a JSON Schema: which there are for each type, and how single ones are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.errors import ErrorCode, RequestError, show

_MAX_LENGTH = 100_000
BY_TYPE: Mapping[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    "number": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "array": frozenset(
        ["items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"]
    ),
    "object": frozenset(
        [
            "properties",
            "required",
            "additionalProperties",
            "unevaluatedProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
        ]
    ),
}
"""The keywords of each type."""
Schema = dict[str, Any] | bool


def refuse(place: str, why: str) -> RequestError:
    """Return the error for a schema at `place` that cannot be honoured."""
    return RequestError(
        ErrorCode.INVALID_REQUEST, f"response_format: schema at {place[:200]}: {why}", "response_format"
    )


def read_object(schema: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    """Return the object at `key`; an empty one without it. Raises `RequestError` for another value."""
    value = schema.get(key, {})
    if not isinstance(value, dict):
        raise refuse(place, f"{key} must be an object, got {show(value)}")
    return value


def read_required(schema: Mapping[str, Any], place: str) -> list[str]:
    """Return the names in `required`, each once. Raises `RequestError` for anything but a list of strings."""
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise refuse(place, f"required must be a list of strings, got {show(required)}")
    return list(dict.fromkeys(required))


def read_count(schema: Mapping[str, Any], key: str, place: str) -> int | None:
    """Return the whole number from 0 on at `key`; None without it. Raises `RequestError` for another value, and for one
    that is too large for the compiler."""
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise refuse(place, f"{key} must be a number from 0, got {show(value)}")
    if value > _MAX_LENGTH:
        raise refuse(place, f"{key} must be at most {_MAX_LENGTH}, got {show(value)}")
    return int(value)
