"""Tells whether no value matches two of several JSON Schemas, from types and from constants of required properties."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

_MAX_OPTIONS = 64
_MAX_DEPTH = 6
_MAX_PARTS = 32
_ABOUT_OTHERS = frozenset(
    [
        *("type", "enum", "const", "minLength", "maxLength", "pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "$dynamicRef", "$recursiveRef", "anyOf", "oneOf", "not", "if"),
    ]
)
"""Keywords by which a value that is no object may not match."""
_ABOUT_VALUES = _ABOUT_OTHERS - {"type", "enum", "const"} | {
    *("properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "allOf", "$ref"),
}
"""Keywords that may refuse a value beside those that list it."""
Find = Callable[[str], Any]


_NOTHING: Mapping[str, Any] = {}


def find_overlaps(options: Sequence[Any], find: Find, within: Mapping[str, Any] = _NOTHING) -> list[list[int]]:
    """Return for each schema the others that may match a value that it matches. `find` resolves a `$ref`. within: a
    schema that the value matches in any case; its types and required properties are looked at."""
    indexes = range(len(options))
    if len(options) > _MAX_OPTIONS:
        return [[other for other in indexes if other != index] for index in indexes]
    found: list[list[int]] = [[] for _ in options]
    for first, second in combinations(indexes, 2):
        if not _differ(options[first], options[second], find, 0, within):
            found[first].append(second)
            found[second].append(first)
    return found


def has_others(schema: Any, find: Find, depth: int = 0) -> bool:
    """Return whether all values that are no objects match; False where that is not seen at once."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return False
    if isinstance(schema.get("$ref"), str):
        return len(schema) == 1 and has_others(find(schema["$ref"]), find, depth + 1)
    parts = schema.get("allOf", [])
    is_known = isinstance(parts, list) and not schema.keys() & _ABOUT_OTHERS
    return is_known and all(has_others(part, find, depth + 1) for part in parts)


def is_always_other(schema: Any, name: str, beside: Sequence[Mapping[str, Any]], find: Find) -> bool:
    """Return whether no value that a property may have beside some schemas matches another one; False where that is not
    seen."""
    own = [_property(part, name) for part in beside]
    return any(one is False or (one is not None and _differ(one, schema, find, 1)) for one in own)


def find_types(schema: Any, find: Find, within: Mapping[str, Any]) -> set[Any] | None:
    """The types of the values that match a schema beside `within`; None where they do not say."""
    known = [types_of(part) for part in (*list_conjuncts(schema, find), *([within] if "type" in within else ()))]
    kinds = [found for found in known if found is not None]
    return set.intersection(*kinds) if kinds else None


def list_values(schema: Any, find: Find) -> list[Any] | None:
    """Return the values that match, each once, where a schema lists them."""
    schema = _resolve(schema, find)
    if schema.get("type") in ("boolean", "null"):
        return [None] if schema["type"] == "null" else [True, False]
    if "type" in schema and "enum" not in schema and "const" not in schema:
        return None
    if schema.keys() & {"anyOf", "allOf", "oneOf", "not", "if", "$ref", "pattern", "minLength", "maxLength", "minimum"}:
        return None
    values = _list_of(schema)
    if values is None:
        return None
    kinds = types_of(schema)
    kept = {_key(value): value for value in values if kinds is None or type_of(value) in kinds}
    return list(kept.values())


def has_nothing_but_values(schema: Any, find: Find) -> bool:
    """Return whether the values that `list_values` returns for a schema are all that it says."""
    schema = _resolve(schema, find)
    return schema.keys().isdisjoint(_ABOUT_VALUES) and "integer" not in (schema.get("type"), *_list_types(schema))


def _list_types(schema: Mapping[str, Any]) -> list[Any]:
    return schema["type"] if isinstance(schema.get("type"), list) else []


def types_of(schema: Mapping[str, Any]) -> set[Any] | None:
    """The types that a value may have, an integer being a number; None where the schema does not say."""
    given = schema.get("type")
    kinds = given if isinstance(given, list) else [given]
    if all(isinstance(kind, str) for kind in kinds):
        return {"number" if kind == "integer" else kind for kind in kinds}
    values = _list_of(schema)
    return None if values is None else {type_of(value) for value in values}


def type_of(value: Any) -> str:
    """The type of a value, an integer being a number."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _resolve(schema: Any, find: Find) -> Mapping[str, Any]:
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}
        if not isinstance(schema.get("$ref"), str):
            return schema
        schema = find(schema["$ref"])
    return {}


def list_conjuncts(schema: Any, find: Find) -> list[Mapping[str, Any]]:
    """Return a schema, and those of its `allOf`, as far as they are looked at: all that a value must match."""
    found, stack = list[Mapping[str, Any]](), [schema]
    while stack and len(found) < _MAX_PARTS:
        part = _resolve(stack.pop(), find)
        found.append(part)
        stack += part["allOf"] if isinstance(part.get("allOf"), list) else ()
    return found


def _differ(first: Any, second: Any, find: Find, depth: int, within: Mapping[str, Any] = _NOTHING) -> bool:
    first, second = _resolve(first, find), _resolve(second, find)
    if depth > _MAX_DEPTH:
        return False
    if _parts_differ(first, second, find, depth, within) or _parts_differ(second, first, find, depth, within):
        return True
    kinds = find_types(first, find, within), find_types(second, find, within)
    if _have_nothing_common(*kinds):
        return True
    values = _values_of(first), _values_of(second)
    if values[0] is not None and values[1] is not None:
        return _have_nothing_common(*values)
    if kinds != ({"object"}, {"object"}):
        return False
    parts = list_conjuncts(first, find), list_conjuncts(second, find)
    return _differ_in_property(*parts, find, depth, within) or _differ_in_property(*parts[::-1], find, depth, within)


def _parts_differ(
    one: Mapping[str, Any], other: Mapping[str, Any], find: Find, depth: int, within: Mapping[str, Any]
) -> bool:
    """Whether all alternatives of a schema, or one of the parts that hold at once, match nothing that another does."""
    for key, holds in (("anyOf", all), ("oneOf", all), ("allOf", any)):
        parts = one.get(key)
        if isinstance(parts, list) and holds(_differ(part, other, find, depth + 1, within) for part in parts):
            return True
    return False


def _have_nothing_common(first: set[Any] | None, second: set[Any] | None) -> bool:
    """Whether two sets that are known are disjoint."""
    return first is not None and second is not None and first.isdisjoint(second)


def _differ_in_property(
    ones: list[Mapping[str, Any]],
    others: list[Mapping[str, Any]],
    find: Find,
    depth: int,
    within: Mapping[str, Any],
) -> bool:
    """Whether a required property of one schema cannot be that of another. Both are given as what holds at once."""
    for name in dict.fromkeys(name for part in (*ones, within) for name in _required(part)):
        own = [_property(part, name) for part in ones]
        for other in (_property(part, name) for part in others):
            if other is False:
                return True
            if other is not None and any(one is not None and _differ(one, other, find, depth + 1) for one in own):
                return True
    return False


def _required(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _property(schema: Mapping[str, Any], name: str) -> Any:
    """The schema of a property; False where there may be none, None where nothing is said."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return False if schema.get("additionalProperties") is False and not schema.get("patternProperties") else None


def _values_of(schema: Mapping[str, Any]) -> set[str] | None:
    values = _list_of(schema)
    return None if values is None else {_key(value) for value in values}


def _list_of(schema: Mapping[str, Any]) -> list[Any] | None:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else None


def _key(value: Any) -> str:
    """A spelling that equal values share. That of a text is no JSON, as is that of nothing else."""
    if isinstance(value, str):
        return f'"{value}'
    return json.dumps(_as_float(value), sort_keys=True)


def _as_float(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) <= 1 << 53 else value
    if isinstance(value, list):
        return [_as_float(item) for item in value]
    return {key: _as_float(item) for key, item in value.items()} if isinstance(value, dict) else value
