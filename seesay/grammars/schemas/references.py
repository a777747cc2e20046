"""The schemas that references of a JSON Schema name, within its document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from seesay.errors import show
from seesay.grammars.schemas.schema_fields import SchemaObject, refuse

_NO_SCHEMAS = frozenset({"enum", "const", "default", "examples", "example"})
_DRAFTS = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019}


_NAMING = frozenset(["$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"])
"""Keywords that name a schema."""
_NAMES = ('"$id"', 'nchor"', "\\u")
"""One of them is in a document where a schema may have a name of its own."""


class References:
    """draft: the version of JSON Schema that the document is written in: 3 to 7, 2019 or 2020."""

    def __init__(self, root: Any, source: str) -> None:
        """source: the document's text."""
        name = root.get("$schema") if isinstance(root, dict) else None
        self.draft = next((n for key, n in _DRAFTS.items() if isinstance(name, str) and key in name), 2020)
        self._resources: SchemaObject = {"": root}
        self._anchors: dict[tuple[str, str], tuple[Any, str]] = {}
        self._dynamic: list[str] = []
        self._found: dict[tuple[str, str], tuple[str, Any, str]] = {}
        names = (*_NAMES, '"id"') if self.draft <= 4 else _NAMES
        self._has_names = any(name in source for name in names)
        if self._has_names:
            for schema, base in self._walk(root, ""):
                self._note(schema, base)

    def base_of(self, schema: SchemaObject, base: str) -> str:
        """Return the address against which the references in a schema are, which stands where they are against
        `base`."""
        if not self._has_names:
            return base
        own = schema.get("$id", schema.get("id") if self.draft <= 4 else None)
        if not isinstance(own, str) or own.startswith("#") or ("$ref" in schema and self.draft <= 7):
            return base
        return urldefrag(urljoin(base, own)).url

    def _walk(self, value: Any, base: str) -> Iterator[tuple[SchemaObject, str]]:
        stack = [(value, base)]
        while stack:
            value, base = stack.pop()
            if isinstance(value, dict):
                if not value.keys().isdisjoint(_NAMING):
                    base = self.base_of(value, base)
                    yield value, base
                stack += [
                    (inner, base)
                    for key, inner in value.items()
                    if isinstance(inner, dict | list) and key not in _NO_SCHEMAS
                ]
            elif isinstance(value, list):
                stack += [(inner, base) for inner in value if isinstance(inner, dict | list)]

    def _note(self, schema: SchemaObject, base: str) -> None:
        own = schema.get("$id", schema.get("id") if self.draft <= 4 else None)
        if isinstance(own, str) and own.startswith("#"):
            self._anchors.setdefault((base, own[1:]), (schema, base))
        elif isinstance(own, str):
            self._resources.setdefault(base, schema)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self._anchors.setdefault((base, schema[key]), (schema, base))
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.append(schema["$dynamicAnchor"])
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.append("")

    def read(self, schema: SchemaObject, place: str) -> str | None:
        """Return the reference of a schema; None without one. Raises `RequestError` for one that depends on where it is
        come from."""
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if key not in schema:
                continue
            given = schema[key]
            if not isinstance(given, str):
                raise refuse(place, f"{key} must be a text, got {show(given)}")
            if key != "$ref" and self._dynamic.count(given.rpartition("#")[2]) > 1:
                raise refuse(place, f"{key} to an anchor that comes more than once is not supported")
            return given
        return None

    def find(self, reference: str, base: str, place: str) -> tuple[str, Any, str]:
        """Return (a name of the schema that a reference names, the schema, the base of what is inside). Raises
        `RequestError` for one that is not in the document."""
        found = self._found.get((reference, base))
        if found is None:
            found = self._found[reference, base] = self._look_up(reference, base, place)
        return found

    def _look_up(self, reference: str, base: str, place: str) -> tuple[str, Any, str]:
        is_local = not base and reference.startswith("#")
        address, fragment = ("", reference[1:]) if is_local else urldefrag(urljoin(base, reference))
        if address not in self._resources and reference.startswith("#"):
            address = base if base in self._resources else ""
        if (address, fragment) in self._anchors:
            schema, inner = self._anchors[address, fragment]
            return f"{address}#{fragment}", schema, inner
        if address in self._resources and (not fragment or fragment.startswith("/")):
            found, inner = self._follow(address, fragment)
            if found is not _MISSING:
                return f"{address}#{fragment}", found, inner
        raise refuse(place, f"$ref {reference[:60]!r} does not exist in the schema")

    def _follow(self, address: str, pointer: str) -> tuple[Any, str]:
        """Return (what a JSON pointer leads to in a resource, or `_MISSING`; the base of what is inside)."""
        found, inner = self._resources[address], address
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~") if "%" in part or "~" in part else part
            if isinstance(found, dict) and self._has_names:
                inner = self.base_of(found, inner)
            found = _step(found, key)
        return found, inner


_MISSING = object()


def _step(found: Any, key: str) -> Any:
    if isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 7 and int(key) < len(found):
        return found[int(key)]
    return found.get(key, _MISSING) if isinstance(found, dict) else _MISSING
