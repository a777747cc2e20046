"""Definitions of a schema that no finite value fits, because each has another one of them in it.

The compiler takes them, and an answer that comes to one has no end.
"""

from __future__ import annotations

from typing import Any

from seesay.grammars.rules import Node, Rules, find_alive

_NEEDING = frozenset(["allOf", "$ref", "anyOf", "required", "minItems"])
_NOTHING = Node("sequence")


def find_dead_definition(schema: dict[str, Any]) -> str | None:
    """Return the name of one of a schema's `$defs`, or None. `schema` is in the compiler's form
    (`seesay.grammars.schemas.json_schema`): its references name `$defs`."""
    definitions: dict[str, Any] = schema["$defs"]
    rules: Rules = {name: _read(part) for name, part in definitions.items()}
    alive = find_alive(rules)
    return next((name for name in definitions if name not in alive), None)


def _read(part: Any) -> Node:
    """Return what a value needs, as a rule: a sequence of all that it needs, a choice where one of several does."""
    if not isinstance(part, dict) or part.keys().isdisjoint(_NEEDING):
        return _NOTHING
    needed = [_read(inner) for inner in (*part.get("allOf", ()), *_find_inner(part))]
    if "$ref" in part:
        needed.append(Node("rule", name=part["$ref"].rpartition("/")[2]))
    if "anyOf" in part:
        needed.append(Node("choice", [_read(option) for option in part["anyOf"]]))
    needed = [node for node in needed if node is not _NOTHING]
    return Node("sequence", needed) if needed else _NOTHING


def _find_inner(part: dict[str, Any]) -> list[Any]:
    """Return the schemas of the properties and items that a value has in any case."""
    if part.get("type") == "object":
        properties = part.get("properties", {})
        return [properties.get(name, True) for name in part.get("required", ())]
    if part.get("type") == "array":
        least, prefix = part.get("minItems", 0), part.get("prefixItems", [])
        return [*prefix[:least], *([part.get("items", True)] if least > len(prefix) else [])]
    return []
