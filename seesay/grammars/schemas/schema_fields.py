"""The fields of a JSON Schema: how single ones are read, and how one that cannot be honoured is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from seesay.errors import ErrorCode, RequestError, show

MAX_COUNT = 100_000
"""Of items, characters and properties: more may not be asked for, and fewer are allowed than a larger maximum."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
SchemaObject = dict[str, Any]
Schema = SchemaObject | bool
IN_PLACE = frozenset(
    [
        *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if"),
        *("dependentRequired", "dependentSchemas", "dependencies"),
    ]
)
"""Keywords whose schemas are about the same value."""


class Spot(NamedTuple):
    """Where a schema stands. base: the address against which its references are. closes: objects have no properties but
    the named ones, where it does not say."""

    place: str
    base: str
    depth: int = 0
    closes: bool = False

    def at(self, step: str, *, closes: bool | None = None) -> Spot:
        """Return the spot of a schema inside."""
        return Spot(f"{self.place}.{step}", self.base, self.depth + 1, self.closes if closes is None else closes)


def refuse(place: str, why: str) -> RequestError:
    """Return the error for a schema at `place` that cannot be honoured."""
    return RequestError(
        ErrorCode.INVALID_REQUEST, f"response_format: schema at {place[:200]}: {why}", "response_format"
    )


def read_object(schema: Mapping[str, Any], key: str, place: str) -> SchemaObject:
    """Return the object at `key`; an empty one without it. Raises `RequestError` for another value."""
    value = schema.get(key, {})
    if not isinstance(value, dict):
        raise refuse(place, f"{key} must be an object, got {show(value)}")
    return value


def read_list(schema: Mapping[str, Any], key: str, place: str) -> list[Any]:
    """Return the list at `key`. Raises `RequestError` for another value, and for an empty one."""
    value = schema[key]
    if not isinstance(value, list) or not value:
        raise refuse(place, f"{key} must be a non-empty list, got {show(value)}")
    return value


def read_names(value: Any, key: str, place: str) -> list[str]:
    """Return the names in a list, each once. Raises `RequestError` for anything but a list of strings."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise refuse(place, f"{key} must be a list of strings, got {show(value)}")
    return list(dict.fromkeys(value))


def read_count(schema: Mapping[str, Any], key: str, place: str) -> int | None:
    """Return the whole number from 0 on at `key`; None without it. Raises `RequestError` for another value, and for a
    minimum that is too large for the compiler."""
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise refuse(place, f"{key} must be a number from 0, got {show(value)}")
    if value > MAX_COUNT and key.startswith("min"):
        raise refuse(place, f"{key} must be at most {MAX_COUNT}, got {show(value)}")
    return min(int(value), MAX_COUNT)


def read_number(schema: Mapping[str, Any], key: str, place: str) -> int | float | None:
    """Return the number at `key`; None without it. Raises `RequestError` for another value, and for an integer that a
    float cannot hold."""
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_exact(value):
        raise refuse(place, f"{key} must be a number up to 2 ** 53, got {show(value)}")
    return value


def is_exact(value: float) -> bool:
    """Return whether a number is one of those that the compiler tells apart."""
    return math.isfinite(value) and abs(value) <= 1 << 53 if isinstance(value, float) else abs(value) <= 1 << 53


def read_types(schema: Mapping[str, Any], place: str) -> list[str] | None:
    """Return the types of a schema; None where it does not say. Raises `RequestError` for one that there is not."""
    given = schema.get("type")
    if given is None:
        return None
    if isinstance(given, str) and given in TYPES:
        return [given]
    types = given if isinstance(given, list) else [given]
    if not types or not all(isinstance(kind, str) and kind in TYPES for kind in types):
        raise refuse(place, f"type must be one or more of {', '.join(TYPES)}, got {show(given)}")
    return [kind for kind in dict.fromkeys(types) if kind != "integer" or "number" not in types]


def all_of(parts: list[Schema]) -> Schema:
    """Return the schema of the values that match all of several."""
    kept = [part for part in parts if part is not True]
    if not kept:
        return True
    return kept[0] if len(kept) == 1 else {"allOf": kept}


def any_of(parts: list[Schema]) -> Schema:
    """Return the schema of the values that match one of several."""
    kept = [part for part in parts if part is not False]
    if not kept:
        return False
    if any(part is True for part in kept):
        return True
    return kept[0] if len(kept) == 1 else {"anyOf": kept}
