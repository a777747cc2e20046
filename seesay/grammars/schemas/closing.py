"""Which properties a schema names, in all its parts that are about the same value."""

from __future__ import annotations

from typing import Any

from seesay.errors import RequestError
from seesay.grammars.schemas.references import References
from seesay.grammars.schemas.schema_fields import SchemaObject

_OPENING = ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties")
_MAX_PARTS = 200


def find_named(schema: Any, base: str, references: References) -> list[str] | None:
    """Return the names, each once; None where there are none, or a part says itself which others there may be."""
    names: dict[str, None] = {}
    stack, seen, num_parts = [(schema, base)], set[str](), 0
    while stack:
        part, base = stack.pop()
        num_parts += 1
        if num_parts > _MAX_PARTS:
            return None
        if not isinstance(part, dict):
            continue
        if any(key in part for key in _OPENING):
            return None
        names.update(dict.fromkeys(_names_of(part)))
        base = references.base_of(part, base)
        stack += [(inner, base) for inner in _parts_of(part)]
        try:
            reference = references.read(part, "$")
            found = None if reference is None else references.find(reference, base, "$")
        except RequestError:
            return None
        if found is not None and found[0] not in seen:
            seen.add(found[0])
            stack.append(found[1:])
    return list(names) or None


def _names_of(part: SchemaObject) -> list[str]:
    named, required = part.get("properties"), part.get("required")
    names = list(named) if isinstance(named, dict) else []
    names += [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for key in ("dependentRequired", "dependencies"):
        needs = part.get(key)
        for value in needs.values() if isinstance(needs, dict) else ():
            names += [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
    return names


def _parts_of(part: SchemaObject) -> list[Any]:
    found: list[Any] = []
    for key in ("allOf", "anyOf", "oneOf"):
        found += part[key] if isinstance(part.get(key), list) else []
    found += [part[key] for key in ("if", "then", "else") if key in part]
    for key in ("dependentSchemas", "dependencies"):
        found += part[key].values() if isinstance(part.get(key), dict) else []
    return found
