"""Parts of a schema that are written once, below `$defs`, however many places have them: the compiler's time is that of
all that stands in its form."""

from __future__ import annotations

import math
from typing import Any

from seesay.grammars.schemas.schema_fields import Schema, SchemaObject

_RANGES = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))
_APART = (
    (("pattern",), ("format",), ("minLength", "maxLength")),
    (("minimum", "maximum"), ("exclusiveMinimum",), ("exclusiveMaximum",)),
)
"""Of two of the same line, each leaves values of the type that it is about, and both together may leave none."""
_KNOWN = frozenset(
    [
        *("type", "enum", "properties", "required", "items", "additionalProperties"),
        *(key for pair in _RANGES for key in pair),
        *(key for groups in _APART for keys in groups for key in keys),
    ]
)


class SharedParts:
    """definitions: by name, in the compiler's form. None of them needs a reference of the document, so none is
    recursive, and each has values: the compiler refuses a definition that has none, but leaves out a property."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._references: dict[str, Schema] = {}
        self._shared: set[int] = set()  # identities of the references, which live as long as this

    def share_type(self, name: str) -> Schema:
        """Return a reference to the schema of all values of a type."""
        reference = self._references.get(name)
        if reference is None:
            reference = self._references[name] = self.share({"type": name})
        return reference

    def share(self, written: Schema) -> Schema:
        """Return a reference to a schema in the compiler's form, or the schema itself where it may not be one."""
        if not isinstance(written, dict) or not self._can_share(written):
            return written
        key = repr(written)  # of one level: what is inside is shared
        reference = self._references.get(key)
        if reference is None:
            name = f"s{len(self.definitions)}"
            self.definitions[name] = written
            reference = self._references[key] = {"$ref": f"#/$defs/{name}"}
            self._shared.add(id(reference))
        return reference

    def _can_share(self, written: SchemaObject) -> bool:
        if not _KNOWN.issuperset(written) or not _has_values(written):
            return False
        others, items = written.get("additionalProperties", True), written.get("items", True)
        if not self._is_shared(items) or not (others is False or self._is_shared(others)):
            return False
        return all(self._is_shared(part) for part in written.get("properties", {}).values())

    def _is_shared(self, part: Any) -> bool:
        return part is True or id(part) in self._shared


def _has_values(written: SchemaObject) -> bool:
    """Whether keywords leave a value, where all that is inside has values; False where that is not seen at once."""
    if len(written) == 1:
        return True
    if "enum" in written:
        return len(written) == 2 and written.get("type") == "string" and str in map(type, written["enum"])
    if any(_is_empty(written, *keys) for keys in _RANGES) or any(_are_several(written, keys) for keys in _APART):
        return False
    is_closed = written.get("additionalProperties") is False
    return not is_closed or written.get("properties", {}).keys() >= set(written.get("required", ()))


def _is_empty(written: SchemaObject, low: str, high: str) -> bool:
    return low in written and high in written and math.ceil(written[low]) > written[high]


def _are_several(written: SchemaObject, groups: tuple[tuple[str, ...], ...]) -> bool:
    return sum(not written.keys().isdisjoint(keys) for keys in groups) > 1
