"""The values that do not match a JSON Schema, as a schema without `not`.

Where not all of them can be described, it is those that can: the schema allows less than `not` would, never more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from seesay.grammars.names import match_others
from seesay.grammars.schemas.disjoint import is_always_other, list_conjuncts, type_of
from seesay.grammars.schemas.schema_fields import (
    Schema,
    SchemaObject,
    Spot,
    all_of,
    any_of,
    is_exact,
    read_count,
    read_list,
    read_names,
    read_number,
    read_object,
    read_types,
    refuse,
)

if TYPE_CHECKING:
    from seesay.grammars.schemas.json_schema import SchemaWriter

_MAX_DEPTH = 12
_MAX_OPTIONS = 128
_BEYOND_TYPES = ("null", "boolean", "number", "string", "array", "object")
_OPPOSITE = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_COUNTS = {
    "minLength": ("string", "maxLength"),
    "maxLength": ("string", "minLength"),
    "minItems": ("array", "maxItems"),
    "maxItems": ("array", "minItems"),
    "minProperties": ("object", "maxProperties"),
}


class Negation:
    """Of the schemas of one document, or of those that are about the same value as others.

    beside: what the value matches in any case. base: the address against which the references in these are.
    """

    def __init__(self, writer: SchemaWriter, beside: Sequence[Any] = (), base: str = "") -> None:
        self._writer = writer
        self._base = base
        self._beside = [part for one in beside for part in list_conjuncts(one, self._find_target)]
        self._makers: Mapping[str, Callable[[SchemaObject, str, Spot], list[Schema]]] = {
            "type": _without_types,
            "enum": _without_values,
            "const": _without_values,
            "required": _without_required,
            "properties": self._without_properties,
            "anyOf": self._without_any,
            "allOf": self._without_all,
            "not": lambda schema, _, spot: [self._writer.write(schema["not"], _inside(spot, "not"))],
            **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef"), self._without_reference),
            **dict.fromkeys(_OPPOSITE, _without_bound),
            **dict.fromkeys(_COUNTS, _without_count),
        }

    def write(self, schema: Any, spot: Spot, key: str, kinds: set[str] | None = None) -> Schema:
        """Return the schema of the values that do not match. kinds: the types that they can have, where that is known.
        Raises `RequestError` that names `key` where none of them can be described."""
        options, is_whole = self._find(schema, Spot(spot.place, spot.base, 0, False))
        if not options and not is_whole:
            raise refuse(spot.place.removesuffix(f".{key}"), f"{key} of such a schema is not supported")
        return any_of(options if kinds is None else [one for one in options if _may_have(one, kinds)])

    def _find(self, schema: Any, spot: Spot) -> tuple[list[Schema], bool]:
        """Return (schemas that together are the values, whether these are all)."""
        if isinstance(schema, bool):
            return [] if schema else [True], True
        if not isinstance(schema, dict):
            raise refuse(spot.place, "a schema must be an object or a boolean")
        if spot.depth > _MAX_DEPTH:
            return [], False
        spot = Spot(spot.place, self._writer.references.base_of(schema, spot.base), spot.depth, False)
        options: list[Schema] = []
        is_whole = True
        for key in schema:
            if key in self._makers:
                found = self._makers[key](schema, key, spot)
                options += found
                is_whole = is_whole and (bool(found) or key in ("properties", "required"))
            elif key in _VALIDATING:
                is_whole = False
        if len(options) > _MAX_OPTIONS:
            return [], False
        return _join_absent(options), is_whole

    def _find_target(self, reference: str) -> Any:
        return self._writer.references.find(reference, self._base, "$")[1]

    def _without_properties(self, schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
        options: list[Schema] = []
        inner = Negation(self._writer) if self._beside else self
        for name, value in read_object(schema, key, spot.place).items():
            if spot.base == self._base and is_always_other(value, name, self._beside, self._find_target):
                found: Schema = True
            else:
                found = any_of(inner._find(value, _inside(spot, f"properties.{name[:60]}"))[0])
            if found is not False:
                options.append({"type": "object", "properties": {name: found}, "required": [name]})
        return options

    def _without_any(self, schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
        parts: list[Schema] = []
        for i, option in enumerate(read_list(schema, key, spot.place)):
            part = any_of(self._find(option, _inside(spot, f"{key}[{i}]"))[0])
            if part is False:
                return []
            parts.append(part)
        return [all_of(parts)]

    def _without_all(self, schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
        options: list[Schema] = []
        for i, part in enumerate(read_list(schema, key, spot.place)):
            options += self._find(part, _inside(spot, f"{key}[{i}]"))[0]
        return options

    def _without_reference(self, schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
        del key
        reference = self._writer.references.read(schema, spot.place)
        assert reference is not None
        _, target, base = self._writer.references.find(reference, spot.base, spot.place)
        return self._find(target, Spot(spot.place, base, spot.depth + 1, False))[0]


def _inside(spot: Spot, step: str) -> Spot:
    return spot.at(step, closes=False)


def _without_types(schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
    del key
    given = read_types(schema, spot.place) or []
    others = [kind for kind in _BEYOND_TYPES if kind not in given and not (kind == "number" and "integer" in given)]
    return [{"type": others[0] if len(others) == 1 else others}] if others else []


def _without_values(schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
    values = schema[key] if key == "enum" else [schema[key]]
    if not isinstance(values, list):
        raise refuse(spot.place, f"{key} must be a list")
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault(type_of(value), []).append(value)
    others = [kind for kind in _BEYOND_TYPES if kind not in by_kind]
    options: list[Schema] = [{"type": others}] if others else []
    for kind, write in _OTHERS_OF.items():
        options += write(by_kind[kind]) if kind in by_kind else []
    return options


def _without_required(schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
    if isinstance(schema[key], bool):
        return []
    return [{"type": "object", "properties": {name: False}} for name in read_names(schema[key], key, spot.place)]


def _without_bound(schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
    if isinstance(schema[key], bool) or isinstance(schema.get(f"exclusive{key.capitalize()}"), bool):
        return []  # of draft 4
    return [{"type": "number", _OPPOSITE[key]: read_number(schema, key, spot.place)}]


def _without_count(schema: SchemaObject, key: str, spot: Spot) -> list[Schema]:
    kind, other = _COUNTS[key]
    count = read_count(schema, key, spot.place) or 0
    if key.startswith("min"):
        return [{"type": kind, other: count - 1}] if count else []
    return [{"type": kind, other: count + 1}]


def _may_have(option: Schema, kinds: set[str]) -> bool:
    """Whether values of some types may match."""
    given = option.get("type") if isinstance(option, dict) else None
    return given is None or not kinds.isdisjoint([given] if isinstance(given, str) else given)


def _join_absent(options: list[Schema]) -> list[Schema]:
    """Write that a property is not there, and that it has some value, as one schema."""
    absent = {name for option in options if (name := _absent_property(option)) is not None}
    joined: dict[str, Schema] = {}
    others: list[Schema] = []
    for option in options:
        properties = _present_property(option)
        name = next(iter(properties), None)
        if name in absent and name not in joined:
            joined[name] = {"type": "object", "properties": properties}
        else:
            others.append(option)
    return [*joined.values(), *(option for option in others if _absent_property(option) not in joined)]


def _present_property(option: Schema) -> dict[str, Schema]:
    """Return the property that a schema says is there with some value, where it says nothing else."""
    if not isinstance(option, dict) or option.keys() != {"type", "properties", "required"}:
        return {}
    properties: dict[str, Schema] = option["properties"]
    is_one = option["type"] == "object" and [*properties] == option["required"] and len(properties) == 1
    return properties if is_one else {}


def _absent_property(option: Schema) -> str | None:
    """Return the property that a schema says is not there, where it says nothing else."""
    if not isinstance(option, dict) or option.keys() != {"type", "properties"} or option["type"] != "object":
        return None
    names = list(option["properties"])
    return names[0] if len(names) == 1 and option["properties"][names[0]] is False else None


def _other_texts(texts: list[str]) -> list[Schema]:
    return [{"type": "string", "pattern": match_others(texts)}]


def _other_booleans(values: list[bool]) -> list[Schema]:
    return [{"const": value} for value in (True, False) if value not in values]


def _other_numbers(values: list[float]) -> list[Schema]:
    return _between(sorted({float(value) for value in values if is_exact(value)}))


def _other_arrays(values: list[list[Any]]) -> list[Schema]:
    return [{"type": "array", "minItems": 1}] if values == [[]] else []


def _other_objects(values: list[dict[str, Any]]) -> list[Schema]:
    return [{"type": "object", "minProperties": 1}] if values == [{}] else []


_OTHERS_OF: dict[str, Callable[[list[Any]], list[Schema]]] = {
    "string": _other_texts,
    "boolean": _other_booleans,
    "number": _other_numbers,
    "array": _other_arrays,
    "object": _other_objects,
}
"""Schemas of the values of a type that are none of some, as far as they can be written."""


def _between(numbers: list[float]) -> list[Schema]:
    """Return the schemas of the numbers that are none of some."""
    if not numbers:
        return []
    options: list[Schema] = [{"type": "number", "exclusiveMaximum": numbers[0]}]
    for low, high in pairwise(numbers):
        options.append({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
    return [*options, {"type": "number", "exclusiveMinimum": numbers[-1]}]


_VALIDATING = frozenset(
    {
        "multipleOf",
        "pattern",
        "format",
        "items",
        "prefixItems",
        "additionalItems",
        "unevaluatedItems",
        "uniqueItems",
        "contains",
        "maxProperties",
        "patternProperties",
        "additionalProperties",
        "unevaluatedProperties",
        "oneOf",
        "if",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
    }
)
"""Keywords of which nothing is known but that more values may not match."""
