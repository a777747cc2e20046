"""Tells whether no value matches two of several JSON Schemas, from types and from constants of required properties."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

_MAX_OPTIONS = 64


def are_disjoint(options: Sequence[Any], find: Callable[[str], Any]) -> bool:
    """Return whether this is certain. `find` resolves a local `$ref`."""
    if len(options) > _MAX_OPTIONS:
        return False
    resolved = [_resolve(option, find) for option in options]
    return all(_differ(first, second, find) for first, second in combinations(resolved, 2))


def _resolve(schema: Any, find: Callable[[str], Any]) -> Mapping[str, Any]:
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}
        if not isinstance(schema.get("$ref"), str):
            return schema
        schema = find(schema["$ref"])
    return {}


def _differ(first: Mapping[str, Any], second: Mapping[str, Any], find: Callable[[str], Any]) -> bool:
    types = _types_of(first), _types_of(second)
    if types[0] is not None and types[1] is not None and not types[0] & types[1]:
        return True
    values = _values_of(first), _values_of(second)
    if values[0] is not None and values[1] is not None:
        return not values[0] & values[1]
    if types != ({"object"}, {"object"}):
        return False
    for name in set(_names(first)) & set(_names(second)):
        own = [_values_of(_resolve(schema["properties"].get(name), find)) for schema in (first, second)]
        if own[0] is not None and own[1] is not None and not own[0] & own[1]:
            return True
    return False


def _names(schema: Mapping[str, Any]) -> list[str]:
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return []
    return [name for name in required if isinstance(name, str) and name in properties]


def _types_of(schema: Mapping[str, Any]) -> set[Any] | None:
    """The types that a value may have, an integer being a number; None where the schema does not say."""
    given = schema.get("type")
    kinds = given if isinstance(given, list) else [given]
    if not all(isinstance(kind, str) for kind in kinds):
        return None
    return {"number" if kind == "integer" else kind for kind in kinds}


def _values_of(schema: Mapping[str, Any]) -> set[str] | None:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list):
        return None
    if any(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        values = [float(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in values]
    return {json.dumps(value, sort_keys=True) for value in values}
