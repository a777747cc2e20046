"""Which properties a schema names, in all its parts that are about the same value."""

from __future__ import annotations

from typing import Any

from seesay.errors import RequestError
from seesay.grammars.schemas.references import References
from seesay.grammars.schemas.schema_fields import SchemaObject

_OPENING = frozenset(["additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"])
_MAX_PARTS = 200


def find_named(schema: Any, base: str, references: References) -> list[str] | None:
    """Return the names, each once; None where there are none, or a part says itself which others there may be."""
    names: dict[str, None] = {}
    stack, seen, num_left = [(schema, base)], set[str](), _MAX_PARTS
    while stack:
        part, base = stack.pop()
        num_left -= 1
        if not isinstance(part, dict) and num_left >= 0:
            continue
        if num_left < 0 or not _OPENING.isdisjoint(part):
            return None
        names.update(dict.fromkeys(_names_of(part)))
        base = references.base_of(part, base)
        stack += [(inner, base) for inner in _parts_of(part)]
        try:
            reference = references.read(part, "$")
            if reference is None:
                continue
            name, *target = references.find(reference, base, "$")
        except RequestError:
            return None
        if name not in seen:
            seen.add(name)
            stack.append((target[0], target[1]))
    return list(names) or None


def _names_of(part: SchemaObject) -> list[str]:
    named = part.get("properties")
    names = [*named] if isinstance(named, dict) else []
    names += _texts_in(part.get("required"))
    for key in ("dependentRequired", "dependencies"):
        needs = part.get(key)
        for value in needs.values() if isinstance(needs, dict) else ():
            names += _texts_in(value)
    return names


def _texts_in(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _parts_of(part: SchemaObject) -> list[Any]:
    found: list[Any] = []
    for key in ("allOf", "anyOf", "oneOf"):
        found += part[key] if isinstance(part.get(key), list) else []
    found += [part[key] for key in ("if", "then", "else") if key in part]
    for key in ("dependentSchemas", "dependencies"):
        found += part[key].values() if isinstance(part.get(key), dict) else []
    return found
