"""The keywords of objects in a form that llguidance honours."""

from __future__ import annotations

import re
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

from seesay.errors import RequestError
from seesay.grammars.schemas.closing import find_named
from seesay.grammars.schemas.disjoint import list_values
from seesay.grammars.schemas.patterns import rewrite_pattern
from seesay.grammars.schemas.schema_fields import (
    IN_PLACE,
    Schema,
    SchemaObject,
    Spot,
    any_of,
    read_count,
    read_names,
    read_object,
    refuse,
)

if TYPE_CHECKING:
    from seesay.grammars.schemas.json_schema import SchemaWriter

_MAX_SUBSETS = 64
_PLAIN_NAMES = frozenset({"type", "pattern", "enum", "const", "minLength", "maxLength", "format", "$ref"})


def write_object(
    writer: SchemaWriter, schema: SchemaObject, spot: Spot, named: list[str] | None
) -> tuple[SchemaObject, list[Schema]]:
    """Return (the keywords, schemas that hold beside them). named: all properties that there may be; None where the
    schema is not closed by others than its own."""
    properties = read_object(schema, "properties", spot.place)
    patterns = read_object(schema, "patternProperties", spot.place)
    written: SchemaObject = {}
    if properties:
        written["properties"] = {name: writer.write_property(name, value, spot) for name, value in properties.items()}
    is_open = False
    for pattern, value in patterns.items():
        try:
            rewritten = rewrite_pattern(pattern, spot.place, key="patternProperties", is_tried=writer.tries_patterns)
        except RequestError as error:
            writer.attempt("patternProperties", spot, error)
            is_open = True
            continue
        inner = writer.write_inside(value, spot, f"patternProperties.{pattern[:60]}")
        written.setdefault("patternProperties", {})[rewritten] = inner
    if "required" in schema and not isinstance(schema["required"], bool):  # a boolean before draft 4
        written["required"] = read_names(schema["required"], "required", spot.place)
    others = None if is_open else _read_others(writer, schema, spot, named)
    if others is not None:
        written["additionalProperties"] = writer.write_inside(others, spot, "additionalProperties")
        for name in named or _list_unnamed(schema, written):
            written.setdefault("properties", {}).setdefault(name, True)
    _hold_names(writer, schema.get("propertyNames", True), written, spot)
    try:
        return written, _write_bounds(schema, written, spot)
    except RequestError as error:
        for key in ("minProperties", "maxProperties"):
            written.pop(key, None)
        writer.attempt("minProperties or maxProperties", spot, error)
    return written, []


def _read_others(writer: SchemaWriter, schema: SchemaObject, spot: Spot, named: list[str] | None) -> Any:
    """Return the schema of the properties that are not named; None where there may be any."""
    if "additionalProperties" in schema:
        return schema["additionalProperties"]
    if "unevaluatedProperties" in schema:
        if not schema.keys() & IN_PLACE:
            return schema["unevaluatedProperties"]
        return _read_unevaluated(writer, schema, spot)
    if named is not None:
        return False
    is_named = "properties" in schema or "patternProperties" in schema  # even none, as of a call without arguments
    return False if spot.closes and is_named and "propertyNames" not in schema else None


def _list_unnamed(schema: SchemaObject, written: SchemaObject) -> list[str]:
    """Return the required properties of an object that is closed though it does not say so: these it names, too."""
    says_others = "additionalProperties" in schema or "unevaluatedProperties" in schema
    return [] if says_others or "patternProperties" in written else written.get("required", [])


def _read_unevaluated(writer: SchemaWriter, schema: SchemaObject, spot: Spot) -> Any:
    refused = refuse(spot.place, "unevaluatedProperties is supported beside $ref and allOf of named properties only")
    value = schema["unevaluatedProperties"]
    if value is True:
        return None
    try:
        rest = {key: inner for key, inner in schema.items() if key != "unevaluatedProperties"}
        hidden = find_named(rest, spot.base, writer.references)
        own = set(read_object(schema, "properties", spot.place))
        if hidden is not None and set(hidden) <= own:
            return value
        raise refused
    except RequestError:
        writer.attempt("unevaluatedProperties", spot, refused)
        return None


def _hold_names(writer: SchemaWriter, names: Any, written: SchemaObject, spot: Spot) -> None:
    """Allow those properties alone whose names match `names`, the schema of `propertyNames`."""
    try:
        if names is not True and names != {}:
            _write_names(writer, names, written, spot)
    except RequestError as error:
        writer.attempt("propertyNames", spot, error)


def _write_names(writer: SchemaWriter, names: Any, written: SchemaObject, spot: Spot) -> None:
    if written.get("patternProperties"):
        raise refuse(spot.place, "propertyNames beside patternProperties is not supported")
    values = [] if names is False else _list_names(writer, names, spot)
    own, others = written.get("properties", {}), written.get("additionalProperties", True)
    if values is not None:
        refused = [name for name in own if name not in values]
        added = [name for name in values if name not in own]
        written["properties"] = {**own, **dict.fromkeys(refused, False), **dict.fromkeys(added, others)}
    else:
        written["patternProperties"] = {_read_name_pattern(names, spot): others}
        known = dict.fromkeys([*own, *written.get("required", ())])
        refused = [name for name in known if not _matches(names, name, spot)]
        if known:
            written["properties"] = {**own, **dict.fromkeys(refused, False)}
    written["additionalProperties"] = False


def _list_names(writer: SchemaWriter, names: Any, spot: Spot) -> list[str] | None:
    """Return the names that match, where a schema lists them."""
    values = list_values(names, lambda ref: writer.references.find(ref, spot.base, spot.place)[1])
    return None if values is None else [name for name in values if isinstance(name, str)]


def _matches(names: SchemaObject, name: str, spot: Spot) -> bool:
    """Return whether a name is one of those that `_read_name_pattern` allows."""
    try:
        is_found = re.search(names.get("pattern", ""), name, re.ASCII) is not None
    except re.error as error:
        raise refuse(spot.place, f"propertyNames has a pattern that is not known: {error}") from error
    return is_found and names.get("minLength", 0) <= len(name) <= names.get("maxLength", len(name))


def _read_name_pattern(names: Any, spot: Spot) -> str:
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        raise refuse(spot.place, "propertyNames is supported with pattern, enum, minLength and maxLength only")
    validating = {key for key in names if key in _PLAIN_NAMES or key in IN_PLACE}
    least = read_count(names, "minLength", spot.place)
    most = read_count(names, "maxLength", spot.place)
    if validating <= {"type", "pattern"} and "pattern" in names:
        return rewrite_pattern(names["pattern"], spot.place, key="propertyNames")
    if validating <= {"type", "minLength", "maxLength"}:
        return f"^(?s:.){{{least or 0},{'' if most is None else most}}}$"
    raise refuse(spot.place, "propertyNames is supported with pattern, enum, minLength and maxLength only")


def _write_bounds(schema: SchemaObject, written: SchemaObject, spot: Spot) -> list[Schema]:
    """Write the bounds of the number of properties, where they say something that llguidance can hold."""
    least, most = read_count(schema, "minProperties", spot.place), read_count(schema, "maxProperties", spot.place)
    required = written.get("required", [])
    optional = [
        name for name, value in written.get("properties", {}).items() if value is not False and name not in required
    ]
    is_open = written.get("additionalProperties") is not False or bool(written.get("patternProperties"))
    beside: list[Schema] = []
    if most is not None and (is_open or most < len(required) + len(optional)):
        beside += _hold_most(most, required, optional, is_open=is_open, written=written, spot=spot)
    if least is not None and least > len(required):
        beside += _hold_least(least, required, optional, is_open=is_open, written=written, spot=spot)
    return beside


def _hold_most(
    most: int, required: list[str], optional: list[str], *, is_open: bool, written: SchemaObject, spot: Spot
) -> list[Schema]:
    if is_open and optional:
        raise refuse(spot.place, "maxProperties beside optional and other properties is not supported")
    if is_open or most < len(required):
        written["maxProperties"] = most
        return []
    left = most - len(required)
    if comb(len(optional), left) > _MAX_SUBSETS:
        raise refuse(spot.place, f"maxProperties of {len(optional)} optional properties is not supported")
    options: list[Schema] = [
        {"properties": {name: False for name in optional if name not in kept}} for kept in combinations(optional, left)
    ]
    return [any_of(options)]


def _hold_least(
    least: int, required: list[str], optional: list[str], *, is_open: bool, written: SchemaObject, spot: Spot
) -> list[Schema]:
    lacking = least - len(required)
    if is_open and lacking > 1:
        # The grammar cannot tell two properties of one name from two properties.
        raise refuse(spot.place, "minProperties above 1 is supported with additionalProperties false only")
    if is_open and not optional:
        written["minProperties"] = least
        return []
    if comb(len(optional), lacking) > _MAX_SUBSETS:
        raise refuse(spot.place, f"minProperties of {len(optional)} optional properties is not supported")
    options: list[Schema] = [{"required": list(kept)} for kept in combinations(optional, lacking)]
    if is_open:
        options.append({"properties": dict.fromkeys(optional, False), "minProperties": least})
    if not options:
        raise refuse(spot.place, f"minProperties is {least}, but {len(required) + len(optional)} are allowed")
    return [any_of(options)]
