"""Finds the place in a JSON Schema of what its compiler refuses, which names none, or that of a form nobody sent."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from seesay.config.grammar import HELD, OPTIONAL, Grammar
from seesay.errors import RequestError
from seesay.grammars.compile import UNSATISFIABLE, TokenTable, compile_program
from seesay.grammars.schemas.holding import find_need, leave_out, write_held
from seesay.grammars.schemas.json_program import write_json
from seesay.grammars.schemas.schema_fields import SchemaObject, refuse

_DEFINITIONS = ("$schema", "$defs", "definitions")
_OF_NAMES = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_OF_ONE = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else")
_POSITION = re.compile(r"^at \d+\(\d+\): ")
"""In a program that nobody sent."""
_ABOUT_ONE_OF = "; of oneOf a value matches one schema and no other: use anyOf, or x-coerce: true beside it"
_BUDGET_S = 0.5
"""Of processor time, which one trial may spend on the search."""

Write = Callable[[Any], tuple[str, tuple[str, ...]]]


def name_place(table: TokenTable, grammar: Grammar, error: str) -> str:
    """Return what the compiler said of a grammar, with the place in the schema that it is about where that is found."""
    if grammar.kind == "json_schema":
        is_open = grammar.is_open
        roots = [("", json.loads(grammar.source))]
        search = _Search(table, lambda part: write_json(json.dumps(part), is_open=is_open, is_lenient=is_open))
    elif grammar.kind == "structural_tag":
        named = _list_schemas(json.loads(grammar.source))
        roots = [(name, root) for name, root in named if find_need(root) != OPTIONAL]
        search = _Search(table, write_held)
    else:
        return error
    for name, root in roots:
        found = search.find(root)
        if found is not None:
            place, why = found
            message = refuse(place, _tell(why)).message
            return message.replace("response_format", f"response_format.{name}", 1) if name else message
    return error


def leave_out_refused(table: TokenTable, grammar: Grammar) -> Grammar | None:
    """Return a structural tag without those of its optional schemas that the compiler refuses; None where there are
    none."""
    if grammar.kind != "structural_tag":
        return None
    tag = json.loads(grammar.source)
    search = _Search(table, write_held)
    refused = [
        schema for _, schema in _list_schemas(tag) if find_need(schema) == OPTIONAL and search.is_refused(schema)
    ]
    for schema in refused:
        leave_out(schema)
    return replace(grammar, source=json.dumps(tag)) if refused else None


def _is_of_one(part: Any) -> bool:
    return isinstance(part, dict) and "oneOf" in part


def _tell(why: str) -> str:
    why = _POSITION.sub("", why)
    return f"{UNSATISFIABLE}no text matches all that it says of texts" if "Regex is empty" in why else why


def _list_schemas(tag: Any) -> Iterator[tuple[str, Any]]:
    """Yield (the name, the schema) of all parts of a structural tag that have one."""
    stack = [tag]
    while stack:
        part = stack.pop()
        if isinstance(part, dict) and isinstance(schema := part.get("json_schema"), dict):
            held = schema.get(HELD)
            yield (held[0] or "" if held else ""), schema
        elif isinstance(part, dict | list):
            stack += reversed(list(part.values()) if isinstance(part, dict) else part)


class _Search:
    """write: return a part of a schema as an expression of the compiler."""

    def __init__(self, table: TokenTable, write: Write) -> None:
        self._table, self._write = table, write
        self._until_s = time.process_time() + _BUDGET_S

    def is_refused(self, root: Any) -> bool:
        return bool(self._compile(root))

    def find(self, root: Any) -> tuple[str, str] | None:
        """Return (the innermost place that is refused as the whole schema is, why); None where the whole is not."""
        shared = {key: root[key] for key in (*_DEFINITIONS, HELD) if key in root} if isinstance(root, dict) else {}
        part, place, why = root, "$", self._compile(root)
        if not why:
            return None
        while True:
            for step, inner in _list_parts(part, needed=UNSATISFIABLE in why):
                found = self._compile({**shared, **inner} if isinstance(inner, dict) else inner)
                if found and (UNSATISFIABLE in found) == (UNSATISFIABLE in why):
                    part, place, why = inner, f"{place}.{step}", found
                    break
            else:
                return place, f"{why}{_ABOUT_ONE_OF}" if _is_of_one(part) and UNSATISFIABLE in why else why

    def _compile(self, part: Any) -> str:
        """Return why a part is refused, or ''."""
        if time.process_time() > self._until_s:
            return ""
        try:
            compile_program(self._table, f"start: {self._write(part)[0]}", forces=False)
        except RequestError:  # it refers to what stands outside of it
            return ""
        except ValueError as error:
            return str(error)
        return ""


def _list_parts(schema: Any, *, needed: bool) -> Iterator[tuple[str, Any]]:
    """Yield (the place, the schema) of the schemas in one. needed: only those that each value has to match."""
    for key, part in schema.items() if isinstance(schema, dict) else ():
        for at, step, inner in _list_steps(key, part):
            if not needed or _is_needed(schema, key, at):
                yield step, inner


def _list_steps(key: str, part: Any) -> list[tuple[Any, str, Any]]:
    if key in _OF_NAMES and isinstance(part, dict):
        return [(name, f"{key}.{name[:60]}", inner) for name, inner in part.items()]
    if key in _OF_LISTS and isinstance(part, list):
        return [(at, f"{key}[{at}]", inner) for at, inner in enumerate(part)]
    return [(0, key, part)] if key in _OF_ONE and isinstance(part, dict) else []


def _is_needed(schema: SchemaObject, key: str, at: Any) -> bool:
    if key == "properties":
        return at in schema.get("required", ())
    if key in ("items", "prefixItems"):
        return bool(at < schema.get("minItems", 0))
    return key.endswith("Of")
