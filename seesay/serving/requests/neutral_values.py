"""JSON schemas of values that change nothing, which fields without a counterpart here may have.

Each has a type, which generators of clients need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def describe_values(values: Sequence[object]) -> dict[str, Any]:
    """Return the JSON schema of null and of `values`."""
    if not values:
        return {"type": "null"}
    texts = [value for value in values if isinstance(value, str)]
    others = [value for value in values if not isinstance(value, str)]
    found = [{"type": "string", "enum": texts}] if texts else []
    for value in others:
        described = _describe(value)
        if described not in found:  # 1 and 1.0 are one number
            found.append(described)
    return {"anyOf": [*found, {"type": "null"}]}


def _describe(value: object) -> dict[str, Any]:
    match value:
        case bool():
            return {"type": "boolean", "const": value}
        case int() | float():
            return {"type": "number", "const": int(value)}
        case str():
            return {"type": "string", "const": value}
        case list():
            items: dict[str, Any] = _describe(value[0]) if value else {}
            return {"type": "array", "items": items, "minItems": len(value), "maxItems": len(value)}
        case dict():
            fields = {name: _describe(inner) for name, inner in value.items()}
            return {
                "type": "object", "properties": fields, "required": list(fields), "additionalProperties": False
            }  # fmt: skip
        case _:
            raise TypeError(f"no schema for {value!r}")
