"""JSON Schemas in a form that the compiler of grammars honours exactly.

The compiler ignores some keywords, and others beside certain keywords: an answer would then follow the grammar and not
the schema. Here each keyword is either honoured, rewritten as something that is, or refused by name. A grammar may
allow less than the schema does (see docs/structured_output.md); it never allows more. Linear in the schema's size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from seesay.errors import show
from seesay.grammars.disjoint import are_disjoint
from seesay.grammars.names import match_other_names
from seesay.grammars.plain_values import write_number, write_string, write_values
from seesay.grammars.productive import find_dead_definition
from seesay.grammars.regex import rewrite_regex
from seesay.grammars.schema_fields import BY_TYPE, Schema, read_count, read_object, read_required, refuse

MAX_NODES = 20_000
MAX_DEPTH = 64
_ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$anchor",
        "discriminator",
        "xml",
        "externalDocs",
        "nullable",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
        "$defs",
        "definitions",
    ]
)
_TYPED = frozenset().union(*BY_TYPE.values())
_APPLICATORS = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
_KNOWN = _ANNOTATIONS | _TYPED | {"type", *_APPLICATORS}


def rewrite_schema(source: str, *, is_open: bool) -> str:
    """Return the compiler's form of a JSON Schema, as JSON. Objects without `additionalProperties` have no others than
    the named ones, and arrays with `prefixItems` no more, unless the schema `is_open`. Raises `RequestError` that names
    the keyword that cannot be honoured, and its place."""
    try:
        root = json.loads(source, parse_constant=_refuse_number, parse_float=_read_float)
    except (ValueError, RecursionError) as error:
        raise refuse("$", f"the schema is not JSON: {error}") from error
    return json.dumps(_Rewriter(root, is_open=is_open).rewrite(), ensure_ascii=False)


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text[:60]} is no number of JSON, or too large")


def _read_float(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refuse_number(text)


class _Rewriter:
    """One schema. What `$ref` names is rewritten once, and stands below `$defs`."""

    def __init__(self, root: Any, *, is_open: bool) -> None:
        self._root = root
        self._is_open = is_open
        self._names: dict[str, str] = {}
        self._targets: dict[str, str] = {}  # of references to references
        self._num_nodes = 0

    def rewrite(self) -> Schema:
        written = self._write(self._root, "$", 0)
        definitions: dict[str, Schema] = {}
        while pending := [pointer for pointer, name in self._names.items() if name not in definitions]:
            for pointer in pending:
                definitions[self._names[pointer]] = self._write(self._find(pointer, "$"), pointer, 0)
        if not definitions:
            return written
        whole = {**(written if isinstance(written, dict) else {}), "$defs": definitions}
        if (dead := find_dead_definition(whole)) is not None:
            place = next(pointer for pointer, name in self._names.items() if name == dead)
            raise refuse(
                place,
                "no value fits, because each has another one of the same schema in it: make a property optional, or "
                "add an alternative that ends",
            )
        return whole

    def _write(self, schema: Any, place: str, depth: int) -> Schema:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise refuse(place, f"it has more than {MAX_NODES} subschemas")
        if depth > MAX_DEPTH:
            raise refuse(place, f"it is nested more than {MAX_DEPTH} levels deep")
        if schema is True:
            return True
        if schema is False:
            raise refuse(place, "false allows no value")
        if not isinstance(schema, dict):
            raise refuse(place, f"a schema must be an object or a boolean, got {show(schema)}")
        self._check_known(schema, place)
        found = [name for name in _APPLICATORS if name in schema]
        if not found:
            return self._write_types(schema, place, depth)
        name = "enum" if "enum" in found else found[0]
        beside = [key for key in schema if key not in _ANNOTATIONS and key != name]
        if name in ("enum", "const"):
            beside = [key for key in beside if key not in ("type", "enum", "const")]
        if beside:
            raise refuse(place, f"{beside[0]} beside {name} is not supported")
        return self._write_applicator(name, schema, place, depth)

    def _check_known(self, schema: Mapping[str, Any], place: str) -> None:
        for key in schema:
            if key == "$id" and place == "$":
                continue
            if key not in _KNOWN and not key.startswith("x-"):
                raise refuse(place, f"{key[:60]} is not supported")

    def _write_applicator(self, name: str, schema: Mapping[str, Any], place: str, depth: int) -> Schema:
        if name == "$ref":
            return self._write_reference(schema["$ref"], place)
        if name in ("enum", "const"):
            return write_values(schema, place)
        options = schema[name]
        if not isinstance(options, list) or not options:
            raise refuse(place, f"{name} must be a non-empty list")
        written = [self._write(option, f"{place}.{name}[{i}]", depth + 1) for i, option in enumerate(options)]
        if len(written) == 1:
            return written[0]
        if name == "allOf":
            raise refuse(place, "allOf of several schemas is not supported: write them as one")
        if name == "oneOf" and not are_disjoint(options, lambda pointer: self._find(pointer, place)):
            raise refuse(
                place,
                "oneOf is supported where no value can match two of its schemas: with different types, or objects with "
                "different constants in a required property; otherwise use anyOf",
            )
        return {"anyOf": written}

    # --- references ---------------------------------------------------------------------------------------------------

    def _write_reference(self, pointer: Any, place: str) -> Schema:
        seen: set[str] = set()
        while True:  # a reference to a reference is one to its target
            if isinstance(pointer, str) and pointer in self._targets:
                pointer = self._targets[pointer]
                break
            if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
                raise refuse(place, f"$ref must be '#' or begin with '#/', got {show(pointer)}")
            if pointer in seen:
                raise refuse(place, f"$ref {pointer[:60]!r} refers to itself")
            seen.add(pointer)
            target = self._find(pointer, place)
            if not (isinstance(target, dict) and "$ref" in target and target.keys() - _ANNOTATIONS == {"$ref"}):
                break
            pointer = target["$ref"]
        self._targets.update(dict.fromkeys(seen, pointer))
        name = self._names.setdefault(pointer, f"d{len(self._names)}")
        return {"$ref": f"#/$defs/{name}"}

    def _find(self, pointer: str, place: str) -> Any:
        found = self._root
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 7 and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise refuse(place, f"$ref {pointer[:60]!r} does not exist")
        return found

    # --- types --------------------------------------------------------------------------------------------------------

    def _write_types(self, schema: Mapping[str, Any], place: str, depth: int) -> Schema:
        given = schema.get("type")
        keywords = [key for key in schema if key in _TYPED]
        if given is None:
            types = [kind for kind, known in BY_TYPE.items() if any(key in known for key in keywords)]
            if "number" in types or "multipleOf" in keywords:
                types = [kind for kind in types if kind != ("integer" if "number" in types else "number")]
            if not types:
                return True
        else:
            types = given if isinstance(given, list) else [given]
            if not types or any(not isinstance(kind, str) or kind not in BY_TYPE for kind in types):
                raise refuse(place, f"type must be one or more of {', '.join(BY_TYPE)}, got {show(given)}")
            types = [kind for kind in dict.fromkeys(types) if kind != "integer" or "number" not in types]
        for key in keywords:
            # A keyword of other types says nothing; one that is about these types, but not honoured, is refused.
            if key == "multipleOf" and "number" in types:
                raise refuse(place, "multipleOf is supported for integers only")
        options = [self._write_type(kind, schema, place, depth) for kind in types]
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _write_type(self, kind: str, schema: Mapping[str, Any], place: str, depth: int) -> Schema:
        if kind in ("integer", "number"):
            return write_number(kind, schema, place)
        if kind == "string":
            return write_string(schema, place)
        if kind == "array":
            return self._write_array(schema, place, depth)
        if kind == "object":
            return self._write_object(schema, place, depth)
        return {"type": kind}

    def _write_array(self, schema: Mapping[str, Any], place: str, depth: int) -> Schema:
        if schema.get("uniqueItems") not in (None, False):
            raise refuse(place, "uniqueItems is not supported")
        prefix, items = schema.get("prefixItems"), schema.get("items")
        if isinstance(items, list):  # before draft 2020-12
            prefix, items = items, schema.get("additionalItems")
        elif "additionalItems" in schema and prefix is not None:
            items = schema["additionalItems"] if items is None else items
        if items is None:
            items = schema.get("unevaluatedItems", prefix is None or self._is_open)
        least, most = read_count(schema, "minItems", place) or 0, read_count(schema, "maxItems", place)
        written: dict[str, Any] = {"type": "array"}
        if prefix is not None:
            if not isinstance(prefix, list):
                raise refuse(place, f"prefixItems must be a list, got {show(prefix)}")
            prefix = prefix if most is None else prefix[:most]
            if prefix:
                written["prefixItems"] = [
                    self._write(item, f"{place}.prefixItems[{i}]", depth + 1) for i, item in enumerate(prefix)
                ]
            if len(prefix) == most:
                items = False
        if items is False or most == 0:
            if least > len(prefix or ()):
                raise refuse(place, f"minItems is {least}, but at most {len(prefix or ())} items are allowed")
            written["items"], most = False, None
            if not prefix:
                return {"const": []}
        else:
            written["items"] = self._write(items, f"{place}.items", depth + 1)
        return written | ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most})

    def _write_object(self, schema: Mapping[str, Any], place: str, depth: int) -> Schema:
        named = read_object(schema, "properties", place)
        others: Any = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        patterns = read_object(schema, "patternProperties", place)
        if others is None:
            is_free = not (named or patterns or schema.get("propertyNames") is not None)
            others = is_free or (self._is_open and not patterns)
        required = read_required(schema, place)
        if lacking := [name for name in required if name not in named]:
            if others is False or patterns or "propertyNames" in schema:
                raise refuse(place, f"required names {show(lacking[0])}, which is not in properties")
            named = {**named, **dict.fromkeys(lacking, others)}
        least, most = read_count(schema, "minProperties", place), read_count(schema, "maxProperties", place)
        if most is not None and most < len(required):
            raise refuse(place, f"maxProperties is {most}, but {len(required)} properties are required")
        kept = {name: value for name, value in named.items() if value is not False}
        if len(kept) < len(named) and others is not False:
            raise refuse(place, "properties that are false are supported with additionalProperties false only")
        if any(name not in kept for name in required):
            raise refuse(place, "required names a property that is false")
        written: dict[str, Any] = {"type": "object", "additionalProperties": False}
        if kept:
            written["properties"] = {
                name: self._write(value, f"{place}.properties.{name[:60]}", depth + 1) for name, value in kept.items()
            }
        if required:
            written["required"] = required
        if "propertyNames" in schema or patterns:
            self._write_patterns(schema, written, patterns, others, place, depth)
        elif others is not False:
            value = self._write(others, f"{place}.additionalProperties", depth + 1)
            self._write_others(schema, written, value, place)
        elif not kept:
            if least:
                raise refuse(place, f"minProperties is {least}, but no property is allowed")
            return {"const": {}}
        elif (least or 0) > len(kept):
            raise refuse(place, f"minProperties is {least}, but {len(kept)} properties are allowed")
        if least is not None and least > len(required):
            if least > 1 and (others is not False or patterns or "propertyNames" in schema):
                # The grammar cannot tell two properties of one name from two properties.
                raise refuse(place, "minProperties above 1 is supported with additionalProperties false only")
            written["minProperties"] = least
        if most is not None and (most < len(kept) or others is not False or patterns):
            written["maxProperties"] = most
        return written

    def _write_others(self, schema: Mapping[str, Any], written: dict[str, Any], value: Schema, place: str) -> None:
        """Allow other properties than the named ones. With escapes, one could spell a named one: there are none."""
        named = written.get("properties", {})
        if not named:
            written["additionalProperties"] = value
            return
        if any(schema.get(key) is not None for key in ("minProperties", "maxProperties")):
            raise refuse(place, "minProperties and maxProperties are supported with additionalProperties false only")
        written["patternProperties"] = {f"^{match_other_names(named)}$": value}

    def _write_patterns(
        self,
        schema: Mapping[str, Any],
        written: dict[str, Any],
        patterns: Mapping[str, Any],
        others: Any,
        place: str,
        depth: int,
    ) -> None:
        """Allow properties whose names match a pattern."""
        key = "patternProperties" if patterns else "propertyNames"
        if written.get("properties"):
            raise refuse(place, f"{key} beside properties is not supported")
        if patterns and "propertyNames" in schema:
            raise refuse(place, "propertyNames beside patternProperties is not supported")
        if patterns:
            if others is not False:
                raise refuse(place, "patternProperties is supported with additionalProperties false only")
            if len(patterns) > 1:
                raise refuse(place, "several patternProperties are not supported: a name may match two of them")
            [(pattern, value)] = patterns.items()
        else:
            pattern, value = _read_name_pattern(schema["propertyNames"], place), others
            if value is None or value is False:
                value = True if "additionalProperties" not in schema else value
            if value is False:
                raise refuse(place, "propertyNames beside additionalProperties false allows no property")
        name = rewrite_regex(pattern, f"response_format: schema at {place[:200]}: {key}", in_json=True)
        written["patternProperties"] = {f"^{name}$": self._write(value, f"{place}.{key}", depth + 1)}


def _read_name_pattern(names: Any, place: str) -> str:
    is_plain = isinstance(names, dict) and names.keys() - _ANNOTATIONS <= {"pattern", "type"}
    if is_plain and isinstance(names.get("pattern"), str) and names.get("type", "string") == "string":
        return str(names["pattern"])
    raise refuse(place, "propertyNames is supported with a pattern only")


def keywords() -> Iterable[str]:
    """Return the keywords that may be honoured, for the tests of each."""
    return sorted(_TYPED | {"type", *_APPLICATORS})
