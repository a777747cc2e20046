"""JSON Schemas of values that have no others in them, in the compiler's form: listed values, strings, numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from seesay.errors import show
from seesay.grammars.character_set import ALL
from seesay.grammars.formats import FORMATS
from seesay.grammars.regex import rewrite_regex, write_set
from seesay.grammars.schema_fields import BY_TYPE, Schema, read_count, refuse

_MAX_NUMBER = 1 << 62
_MAX_DECIMALS = 6


def write_values(schema: Mapping[str, Any], place: str) -> Schema:
    """Return the form of a schema with `enum` or `const`: those of its values that have its type. Raises `RequestError`
    where there are none."""
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(values, list) or not values:
        raise refuse(place, "enum must be a non-empty list")
    if "enum" in schema and "const" in schema:
        values = [value for value in values if _same(value, schema["const"])]
        if not values:
            raise refuse(place, "enum does not have the value of const")
    given = schema.get("type")
    if given is not None:
        types = given if isinstance(given, list) else [given]
        values = [value for value in values if any(_is_of(value, kind) for kind in types)]
    if not values:
        raise refuse(place, f"{'enum' if 'enum' in schema else 'const'} has no value of the type {show(given)}")
    return {"enum": values}


def _same(first: Any, second: Any) -> bool:
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _is_of(value: Any, kind: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return bool(kind == ("boolean" if value is not None else "null"))
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    return (kind == "string" and isinstance(value, str)) or (
        (kind == "array" and isinstance(value, list)) or (kind == "object" and isinstance(value, dict))
    )


def write_string(schema: Mapping[str, Any], place: str) -> Schema:
    """Return the form of a schema of strings. Raises `RequestError` naming a keyword that cannot be honoured."""
    least, most = read_count(schema, "minLength", place), read_count(schema, "maxLength", place)
    pattern, format = schema.get("pattern"), schema.get("format")
    given = [key for key in ("pattern", "format", "minLength", "maxLength") if schema.get(key) is not None]
    if given[1:] and given[0] in ("pattern", "format"):
        raise refuse(place, f"{given[1]} beside {given[0]} is not supported")
    if pattern is None and format is None:
        if most is not None and (least or 0) > most:
            raise refuse(place, f"minLength is {least}, but maxLength is {most}")
        if not least and most is None:
            return {"type": "string"}
        # The compiler's own lengths allow control characters, which JSON does not.
        char = write_set(ALL, in_json=True)
        return {"type": "string", "pattern": f"^{char}{{{least or 0},{'' if most is None else most}}}$"}
    if pattern is None and (not isinstance(format, str) or format not in FORMATS):
        raise refuse(place, f"format must be one of {', '.join(FORMATS)}, got {show(format)}")
    if pattern is not None and not isinstance(pattern, str):
        raise refuse(place, f"pattern must be a string, got {show(pattern)}")
    where = f"response_format: schema at {place[:200]}: {given[0]}"
    written = rewrite_regex(FORMATS[str(format)] if pattern is None else pattern, where, in_json=True)
    return {"type": "string", "pattern": f"^{written}$"} if written else {"const": ""}


def write_number(kind: str, schema: Mapping[str, Any], place: str) -> Schema:
    """Return the form of a schema of this `kind`, "integer" or "number". Raises `RequestError` naming a keyword that
    cannot be honoured."""
    bounds: dict[str, float] = {}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        value = schema.get(key)
        if value is None or key not in BY_TYPE[kind]:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(place, f"{key} must be a number, got {show(value)}")
        if abs(value) >= _MAX_NUMBER:
            raise refuse(place, f"{key} must be less than 2 ** 62 in size, got {show(value)}")
        bounds[key] = value
    if kind == "integer":
        return {"type": kind, **_write_integer_bounds(bounds, place)}
    for key, value in bounds.items():
        if value != round(value, _MAX_DECIMALS) or abs(value) > 1e15:
            raise refuse(place, f"{key} must have at most {_MAX_DECIMALS} decimals and 15 digits, got {show(value)}")
    least = max((bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds), default=-math.inf)
    most = min((bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds), default=math.inf)
    if least > most or (
        least == most and (least == bounds.get("exclusiveMinimum") or most == bounds.get("exclusiveMaximum"))
    ):
        raise refuse(place, "no number is between its bounds")
    if "exclusiveMinimum" in bounds and "exclusiveMaximum" in bounds:
        ends = (bounds["exclusiveMinimum"], bounds["exclusiveMaximum"])
        below, above = (round(Decimal(str(end)).scaleb(_MAX_DECIMALS)) for end in ends)
        if above - below == 1:
            raise refuse(place, f"no number of at most {_MAX_DECIMALS} decimals is between its bounds")
    return {"type": kind, **{key: int(value) if value == int(value) else value for key, value in bounds.items()}}


def _write_integer_bounds(bounds: Mapping[str, float], place: str) -> dict[str, int]:
    least = [math.ceil(bounds["minimum"])] if "minimum" in bounds else []
    most = [math.floor(bounds["maximum"])] if "maximum" in bounds else []
    least += [math.floor(bounds["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in bounds else []
    most += [math.ceil(bounds["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in bounds else []
    if least and most and max(least) > min(most):
        raise refuse(place, "no integer is between its bounds")
    step = bounds.get("multipleOf")
    written = ({"minimum": max(least)} if least else {}) | ({"maximum": min(most)} if most else {})
    if step is None:
        return written
    if step <= 0 or step != int(step) or step > 1000:
        raise refuse(place, f"multipleOf must be an integer from 1 to 1000, got {show(step)}")
    if step == 1:
        return written
    if written:
        raise refuse(place, "multipleOf beside bounds is not supported")
    return {"multipleOf": int(step)}
