"""The keywords of arrays in a form that llguidance honours."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

from seesay.errors import RequestError, show
from seesay.grammars.schemas.disjoint import has_nothing_but_values, list_values
from seesay.grammars.schemas.schema_fields import Schema, SchemaObject, Spot, all_of, any_of, read_count, refuse

if TYPE_CHECKING:
    from seesay.grammars.schemas.json_schema import SchemaWriter

_MAX_IN_ANY_ORDER = 5
_MAX_IN_ORDER = 10
_MAX_PLACES = 8
"""A value that an array must contain is one of so many first ones."""


def write_array(
    writer: SchemaWriter, schema: SchemaObject, spot: Spot, named: object = None
) -> tuple[SchemaObject, list[Schema]]:
    """Return (the keywords, schemas that hold beside them). `named` is about objects."""
    del named
    prefix, items = _read_items(schema, spot)
    least, most = _read_bounds(writer, schema, spot)
    written: SchemaObject = {}
    if prefix:
        written["prefixItems"] = [writer.write_inside(item, spot, f"prefixItems[{i}]") for i, item in enumerate(prefix)]
    if items is not True:
        written["items"] = writer.write_inside(items, spot, "items")
    if least:
        written["minItems"] = least
    if most is not None:
        written["maxItems"] = most
    writers = {"uniqueItems": _write_unique} if schema.get("uniqueItems") not in (None, False) else {}
    if "contains" in schema:
        writers["contains"] = _write_contains
    beside: list[Schema] = []
    for key, write in writers.items():
        try:
            beside.append(write(writer, schema, spot, written))
        except RequestError as error:
            writer.attempt(key, spot, error)
    return written, beside


def _read_bounds(writer: SchemaWriter, schema: SchemaObject, spot: Spot) -> tuple[int, int | None]:
    try:
        return read_count(schema, "minItems", spot.place) or 0, read_count(schema, "maxItems", spot.place)
    except RequestError as error:
        writer.attempt("minItems or maxItems", spot, error)
        return 0, None


def _read_items(schema: SchemaObject, spot: Spot) -> tuple[list[Any], Any]:
    """Return (the schemas of the first items, that of the others)."""
    prefix, items = schema.get("prefixItems"), schema.get("items")
    if isinstance(items, list):  # before draft 2020-12
        prefix, items = items, schema.get("additionalItems")
    if prefix is not None and not isinstance(prefix, list):
        raise refuse(spot.place, f"prefixItems must be a list, got {show(prefix)}")
    if items is None:
        items = schema.get("unevaluatedItems", not (prefix and spot.closes))
    return prefix or [], items


def _write_unique(writer: SchemaWriter, schema: SchemaObject, spot: Spot, written: SchemaObject) -> Schema:
    """Items that differ are listed, where there are few values."""
    least, most = written.get("minItems", 0), written.get("maxItems")
    prefix, items = _read_items(schema, spot)
    if items is False:
        most = min(len(prefix), len(prefix) if most is None else most)
    if most is not None and most <= 1:
        return True

    def find(reference: str) -> Any:
        return writer.references.find(reference, spot.base, spot.place)[1]

    values = None if prefix else list_values(items, find)
    if values is None or len(values) > _MAX_IN_ORDER:
        raise refuse(spot.place, f"uniqueItems is supported for items with up to {_MAX_IN_ORDER} values")
    lists = _list_unique(values, least, len(values) if most is None else most)
    if not lists:
        raise refuse(spot.place, f"minItems is {least}, but there are {len(values)} values that differ")
    if has_nothing_but_values(items, find):  # the lists say all of this, which llguidance would hold each of them to
        for key in ("items", "minItems", "maxItems"):
            written.pop(key, None)
    return {"enum": lists}


def _list_unique(values: list[Any], least: int, most: int) -> list[list[Any]]:
    """Return the lists of `least` to `most` of some values, each at most once; of many values, in their order alone."""
    choose = permutations if len(values) <= _MAX_IN_ANY_ORDER else combinations
    sizes = range(least, min(len(values), most) + 1)
    return [list(chosen) for size in sizes for chosen in choose(values, size)]


def _write_contains(writer: SchemaWriter, schema: SchemaObject, spot: Spot, written: SchemaObject) -> Schema:
    least = read_count(schema, "minContains", spot.place)
    if "maxContains" in schema or (least or 1) > 1:
        raise refuse(spot.place, "minContains above 1 and maxContains are not supported")
    if least == 0:
        return True
    wanted = writer.write(schema["contains"], spot.at("contains", closes=writer.is_closing))
    if wanted is True:
        return {"minItems": 1}
    prefix, items = written.get("prefixItems", []), written.get("items", True)
    most = min(written.get("maxItems", _MAX_PLACES), _MAX_PLACES)
    options: list[Schema] = []
    for place in range(most):
        own = [*prefix, *[items] * (place + 1 - len(prefix))]
        first = [*own[:place], all_of([own[place], wanted])]
        options.append({"prefixItems": first, "minItems": place + 1})
    found = any_of(options)
    # Of another type than an array, no value has items.
    return found if schema.get("type") == "array" else any_of([{"type": _OTHERS}, found])


_OTHERS = ["null", "boolean", "number", "string", "object"]
