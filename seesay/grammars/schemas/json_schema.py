"""JSON Schemas in a form that llguidance honours exactly.

Keywords that validate nothing are left out, and so are formats that are not known. Keywords that llguidance has not are
written by means of others, or refused by name and place. A grammar may allow less than the schema does (see
docs/structured_output.md); it never allows more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec

from seesay.errors import RequestError, show
from seesay.grammars.productive import find_dead_definition
from seesay.grammars.schemas.arrays import write_array
from seesay.grammars.schemas.closing import find_named
from seesay.grammars.schemas.disjoint import find_overlaps, find_types, has_others
from seesay.grammars.schemas.negation import Negation
from seesay.grammars.schemas.objects import write_object
from seesay.grammars.schemas.plain import PLAIN, write_plain
from seesay.grammars.schemas.references import References
from seesay.grammars.schemas.schema_fields import (
    IN_PLACE,
    TYPES,
    Schema,
    SchemaObject,
    Spot,
    all_of,
    any_of,
    read_list,
    read_names,
    read_object,
    refuse,
)
from seesay.grammars.schemas.sharing import SharedParts

MAX_NODES = 50_000
MAX_DEPTH = 64
_MAX_EXCLUSIVE = 8
"""Most schemas of a `oneOf` of which each is written without the others."""
_ARRAY = frozenset(
    ["items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems", "contains"]
)
_OBJECT = frozenset(
    [
        "properties",
        "required",
        "additionalProperties",
        "unevaluatedProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ]
)
_TYPE_NAMES = frozenset(TYPES)
_HAS_PLAIN, _HAS_IN_PLACE, _HAS_ARRAY, _HAS_OBJECT = 1, 2, 4, 8
_KINDS = {
    **dict.fromkeys(PLAIN, _HAS_PLAIN),
    **dict.fromkeys(IN_PLACE, _HAS_IN_PLACE),
    **dict.fromkeys(_ARRAY, _HAS_ARRAY),
    **dict.fromkeys(_OBJECT, _HAS_OBJECT),
}
_BUT_TYPE = frozenset(_KINDS) - {"type"}
_BUT_REFERENCE = frozenset(_KINDS) - {"$ref"} | {"$id", "id"}


def rewrite_schema(
    source: str, *, is_open: bool, is_lenient: bool = False, tries_patterns: bool = False
) -> tuple[Schema, tuple[str, ...]]:
    """Return (the compiler's form of a JSON Schema, what was left out of it). Objects without `additionalProperties`
    have no others than the named ones, and arrays with `prefixItems` no more, unless the schema `is_open`. Raises
    `RequestError` that names the keyword that cannot be honoured, and its place; where the schema `is_lenient`, such a
    keyword is left out. tries_patterns: also of a regular expression that only the compiler would refuse, as where the
    schema is lenient."""
    try:
        root = _read_json(source)
    except (ValueError, RecursionError) as error:
        raise refuse("$", f"the schema is not JSON: {error}") from error
    tries_patterns |= is_lenient
    references = References(root, source)
    writer = SchemaWriter(
        root, references, is_closing=not is_open, is_lenient=is_lenient, tries_patterns=tries_patterns
    )
    return writer.write_root(), tuple(dict.fromkeys(writer.left_out))


def _read_json(source: str) -> Any:
    try:
        return msgspec.json.decode(source)  # in a third of the time
    except (msgspec.MsgspecError, UnicodeError):  # it takes no half of a surrogate pair, which may stand in a title
        return json.loads(source, parse_constant=_refuse_number, parse_float=_read_float)


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text[:60]} is no number of JSON, or too large")


def _read_float(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refuse_number(text)


class SchemaWriter:
    """Writes one schema. What references name is written once, and stands below `$defs`.

    left_out: what a lenient writer did not hold, with its place.
    """

    def __init__(
        self, root: Any, references: References, *, is_closing: bool, is_lenient: bool, tries_patterns: bool
    ) -> None:
        self.references = references
        self.left_out: list[str] = []
        self.shared = SharedParts()
        self._root = root
        self.is_closing, self._is_lenient, self.tries_patterns = is_closing, is_lenient, tries_patterns
        self._negation = Negation(self)
        self._names: dict[tuple[str, bool], str] = {}
        self._referring: dict[tuple[str, str], Schema] = {}  # of properties, by reference and base
        self._targets: dict[str, tuple[str, Any, str]] = {}  # of references to references
        self._pending: list[tuple[str, Any, Spot]] = []
        self.patterns: dict[str, str] = {}  # rewritten ones
        self._num_nodes = 0
        self._coerces = isinstance(root, dict) and root.get("x-coerce") is True

    def write_root(self) -> Schema:
        """Return the whole schema, with the definitions that it needs."""
        base = self.references.base_of(self._root, "") if isinstance(self._root, dict) else ""
        written = self.write(self._root, Spot("$", base, closes=self.is_closing))
        if written is False:
            raise refuse("$", "it allows no value")
        definitions: dict[str, Schema] = self.shared.definitions
        places: dict[str, str] = {}
        while self._pending:
            name, target, spot = self._pending.pop()
            definitions[name], places[name] = self.write(target, spot), spot.place
        if not definitions:
            return written
        whole = {**(written if isinstance(written, dict) else {}), "$defs": definitions}
        if (dead := find_dead_definition(whole)) is not None:
            raise refuse(
                places[dead],
                "no value fits, because each has another one of the same schema in it: make a property optional, or "
                "add an alternative that ends",
            )
        return whole

    def write(self, schema: Any, spot: Spot) -> Schema:
        """Return the compiler's form of a schema."""
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise refuse(spot.place, f"it has more than {MAX_NODES} subschemas")
        if spot.depth > MAX_DEPTH:
            raise refuse(spot.place, f"it is nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise refuse(spot.place, f"a schema must be an object or a boolean, got {show(schema)}")
        base = self.references.base_of(schema, spot.base)
        if base != spot.base:
            spot = spot._replace(base=base)
        if "$ref" in schema and self.references.draft <= 7:
            return self._write_reference(schema, spot)
        return self._write_parts(schema, spot)

    def write_property(self, name: str, schema: Any, spot: Spot) -> Schema:
        """Return the compiler's form of the schema of a property. Most say no more than one type, or refer to a schema
        that was written before."""
        if isinstance(schema, dict) and self._num_nodes < MAX_NODES:
            given = schema.get("type")
            if _BUT_TYPE.isdisjoint(schema) and isinstance(given, str) and given in _TYPE_NAMES:
                self._num_nodes += 1
                return self.shared.share_type(given)
            reference = schema.get("$ref")
            if isinstance(reference, str) and _BUT_REFERENCE.isdisjoint(schema):
                self._num_nodes += 1
                written = self._referring.get((reference, spot.base))
                if written is None:
                    inner = spot.at(f"properties.{name[:60]}", closes=self.is_closing)
                    written = self._referring[reference, spot.base] = self._write_reference(schema, inner)
                return written
        return self.write_inside(schema, spot, f"properties.{name[:60]}")

    def write_inside(self, schema: Any, spot: Spot, step: str) -> Schema:
        """Return the compiler's form of the schema of values inside of others."""
        return self.shared.share(self.write(schema, spot.at(step, closes=self.is_closing)))

    def attempt(self, what: str, spot: Spot, error: RequestError) -> None:
        """Note that something is left out, or raise `error`."""
        if not self._is_lenient:
            raise error
        self.left_out.append(f"{what} at {spot.place}")

    def _write_parts(self, schema: SchemaObject, spot: Spot) -> Schema:
        """Return a schema as the keywords that llguidance takes together, and others that hold beside these."""
        kinds = 0
        for key in schema:
            kinds |= _KINDS.get(key, 0)
        if kinds <= _HAS_PLAIN:
            return self._write_plain_parts(schema, spot)
        written: SchemaObject = {}
        beside: list[Schema] = []
        named, inner = self._find_closing(schema, spot, kinds) if kinds & _HAS_IN_PLACE else (None, spot)
        groups = {_first(schema, "properties", _OBJECT): write_object} if kinds & _HAS_OBJECT else {}
        if kinds & _HAS_ARRAY:
            groups[_first(schema, "items", _ARRAY)] = write_array
        for key in schema:  # properties come in the order of the keywords
            if key in IN_PLACE:
                written.setdefault("allOf", [])
                beside.append(self._write_in_place(key, schema, inner))
            elif key in groups:
                found, others = groups[key](self, schema, inner, named)
                written.update(found)
                beside += others
            elif key in PLAIN:
                beside.append(write_plain(self, key, schema, written, inner))
        if named is not None and not kinds & _HAS_OBJECT:
            beside.append({"properties": dict.fromkeys(named, True), "additionalProperties": False})
        return _combine(written, beside)

    def _write_plain_parts(self, schema: SchemaObject, spot: Spot) -> Schema:
        """Return a schema that has no others in it: most of the schemas in a document."""
        written: SchemaObject = {}
        beside: list[Schema] = []
        for key in schema:
            if key in PLAIN and (found := write_plain(self, key, schema, written, spot)) is not True:
                beside.append(found)
        return _combine(written, beside) if beside else written or True

    def _find_closing(self, schema: SchemaObject, spot: Spot, kinds: int) -> tuple[list[str] | None, Spot]:
        """Return (all properties that values of a schema with others in place may have, the spot of its parts)."""
        is_alone = len(schema.keys() & IN_PLACE) == 1 and not kinds & _HAS_OBJECT and "if" not in schema
        if is_alone and not _joins_several(schema):
            return None, spot
        named = find_named(schema, spot.base, self.references) if spot.closes else None
        return named, spot._replace(closes=False)

    # --- keywords whose schemas are about the same value --------------------------------------------------------------

    def _write_in_place(self, key: str, schema: SchemaObject, spot: Spot) -> Schema:
        if key in ("$ref", "$dynamicRef", "$recursiveRef"):
            return self._write_reference(schema, spot)
        if key in ("allOf", "anyOf", "oneOf"):
            options = read_list(schema, key, spot.place)
            if key == "oneOf":
                return self._write_one_of(schema, spot)
            written = [self.write(option, spot.at(f"{key}[{i}]")) for i, option in enumerate(options)]
            return all_of(written) if key == "allOf" else any_of(written)
        try:
            return self._write_condition(key, schema, spot)
        except RequestError as error:
            self.attempt(key, spot, error)
            return True

    def _write_condition(self, key: str, schema: SchemaObject, spot: Spot) -> Schema:
        if key == "not":
            return self._negation.write(schema["not"], spot.at("not"), "not", self._types_of(schema, spot))
        if key == "if":
            test = schema["if"]
            then = self.write(schema.get("then", True), spot.at("then"))
            other = self.write(schema.get("else", True), spot.at("else"))
            yes: Schema = True if then is True and other is True else self.write(test, spot.at("if"))
            if then is True and other is True:
                return True
            no = self._negation.write(test, spot.at("if"), "if", self._types_of(schema, spot))
            return any_of([_both(yes, then), _both(no, other)])
        return self._write_dependencies(key, schema, spot)

    def _write_dependencies(self, key: str, schema: SchemaObject, spot: Spot) -> Schema:
        """Properties that need the same others are written together: the compiler multiplies alternatives out."""
        parts: list[Schema] = []
        needy: dict[tuple[str, ...], list[str]] = {}
        for name, needs in read_object(schema, key, spot.place).items():
            at = spot.at(f"{key}.{name[:60]}")
            if isinstance(needs, list):
                names = [other for other in read_names(needs, key, at.place) if other != name]
                needy.setdefault(tuple(names), []).append(name)
            else:
                held = _both({"required": [name]}, self.write(needs, at))
                parts.append(any_of([{"properties": {name: False}}, held]))
        for needed, names in needy.items():
            if needed:
                held = {"required": [*(names if len(names) == 1 else ()), *needed]}
                parts.append(any_of([{"properties": dict.fromkeys(names, False)}, held]))
        return all_of(parts)

    def _write_one_of(self, schema: SchemaObject, spot: Spot) -> Schema:
        options = schema["oneOf"]
        written = [self.write(option, spot.at(f"oneOf[{i}]")) for i, option in enumerate(options)]
        if len(written) == 1 or schema.get("x-coerce") is True or self._coerces:
            return any_of(written)
        try:
            return self._write_exclusive(schema, written, spot)
        except RequestError as error:
            why = "oneOf is supported where it is known which values match two of its schemas; otherwise use anyOf, or"
            self.attempt("oneOf", spot, refuse(spot.place, f"{why} x-coerce: true beside it ({error.message[-200:]})"))
            return any_of(written)

    def _write_exclusive(self, schema: SchemaObject, written: list[Schema], spot: Spot) -> Schema:
        """Each of the schemas without those that overlap it."""
        options, find = schema["oneOf"], self._finder(spot)
        # Values that are no objects match two of them, so only objects match one.
        is_of_objects = "type" not in schema and sum(has_others(option, find) for option in options) > 1
        within = {**schema, "type": "object"} if is_of_objects else schema
        own: Schema = {"type": "object"} if is_of_objects else True
        overlaps = find_overlaps(options, find, within)
        if not any(overlaps):
            return all_of([own, any_of(written)])
        if sum(map(bool, overlaps)) > _MAX_EXCLUSIVE:
            raise refuse(spot.place, f"oneOf has more than {_MAX_EXCLUSIVE} schemas that may match the same value")
        exclusive: list[Schema] = []
        for i, one in enumerate(written):
            kinds = find_types(options[i], find, within)
            negation = Negation(self, [options[i], within], spot.base)
            without = [negation.write(options[j], spot.at(f"oneOf[{j}]"), "oneOf", kinds) for j in overlaps[i]]
            exclusive.append(False if False in without else all_of([one, *without]))
        if not any(exclusive):
            raise refuse(spot.place, "no value that matches one of its schemas alone is known")
        return all_of([own, any_of(exclusive)])

    def _finder(self, spot: Spot) -> Callable[[str], Any]:
        return lambda reference: self.references.find(reference, spot.base, spot.place)[1]

    def _types_of(self, schema: SchemaObject, spot: Spot) -> set[str] | None:
        return find_types({"type": schema["type"]}, self._finder(spot), {}) if "type" in schema else None

    def _write_reference(self, schema: SchemaObject, spot: Spot) -> Schema:
        seen: set[str] = set()
        base = spot.base
        while True:  # a reference to a reference is one to its target
            reference = self.references.read(schema, spot.place)
            assert reference is not None
            try:
                key, target, base = self.references.find(reference, base, spot.place)
            except RequestError as error:
                self.attempt("$ref", spot, error)
                return True
            if key in self._targets:
                key, target, base = self._targets[key]
                break
            if key in seen:
                raise refuse(spot.place, f"$ref {reference[:60]!r} refers to itself")
            seen.add(key)
            if not (isinstance(target, dict) and target.keys() == {"$ref"}):
                break
            schema = target
        self._targets.update(dict.fromkeys(seen, (key, target, base)))
        name = self._names.get((key, spot.closes))
        if name is None:
            name = self._names[key, spot.closes] = f"d{len(self._names)}"
            place = key if key.startswith("#") else f"${key}"
            self._pending.append((name, target, Spot(place, base, 0, spot.closes)))
        return {"$ref": f"#/$defs/{name}"}


def _both(first: Schema, second: Schema) -> Schema:
    return False if first is False or second is False else all_of([first, second])


def _joins_several(schema: SchemaObject) -> bool:
    return isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1


def _first(schema: SchemaObject, key: str, others: frozenset[str]) -> str:
    """The keyword at whose place those of a type are written. There is one of them."""
    if key in schema:
        return key
    return next(other for other in schema if other in others)


def _combine(written: SchemaObject, beside: list[Schema]) -> Schema:
    """Return keywords, and schemas that hold beside them, at the place of `allOf`."""
    if False in beside:
        return False
    kept = [part for part in beside if part is not True]
    if not kept and "allOf" not in written:
        return written or True
    own = {key: value for key, value in written.items() if key != "allOf"}
    if not own or not kept:
        return all_of([own or True, *kept])
    return {**written, "allOf": kept}
