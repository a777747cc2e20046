"""Schemas of functions that are held as far as a grammar can, and what that leaves out of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from seesay.config.grammar import HELD, HELD_NEEDS, LEFT_OUT
from seesay.errors import RequestError
from seesay.grammars.schemas.json_program import write_json
from seesay.grammars.schemas.schema_fields import SchemaObject

ROOT_KEYWORDS = ("anyOf", "oneOf", "allOf", "$ref", "not", "if")
"""Keywords that say what the root is, where arguments are to be an object with named properties."""
ANSWER = "answer"
"""The name of an answer's schema in errors."""
_OWN_PLACE = re.compile(r"^response_format: schema at \$")


def write_held(schema: Any) -> tuple[str, tuple[str, ...]]:
    """Return (the expression for JSON that matches a schema, what it does not hold), as the schema's `HELD` says: it is
    held exactly without it. Raises `RequestError` that names what must be held and cannot be, and its place."""
    held = _read_held(schema)
    if held is None:
        return write_json(json.dumps(schema))
    place, strict, is_whole, need = held
    root = place or "$"
    if need == LEFT_OUT:
        return _leave_out(root, is_whole=is_whole)
    own = {key: value for key, value in schema.items() if key != HELD}
    if strict is not False:
        try:
            return write_json(json.dumps(own), tries_patterns=not strict)
        except RequestError as error:
            if strict:
                where = f"response_format.{place or ANSWER}: schema at $"
                message = _OWN_PLACE.sub(lambda _: where, error.message, count=1)
                raise RequestError(error.code, message, "response_format") from error
    return _write_leniently(own, root, is_whole=is_whole)


def _write_leniently(schema: SchemaObject, root: str, *, is_whole: bool) -> tuple[str, tuple[str, ...]]:
    kept = {key: value for key, value in schema.items() if not (is_whole and key in ROOT_KEYWORDS)}
    dropped = [f"{key} at $" for key in schema if key not in kept]
    try:
        written, left_out = write_json(json.dumps(kept), is_open=True, is_lenient=True)
    except RequestError:
        return _leave_out(root, is_whole=is_whole)
    return written, tuple(each.replace(" at $", f" at {root}", 1) for each in (*dropped, *left_out))


def _leave_out(place: str, *, is_whole: bool) -> tuple[str, tuple[str, ...]]:
    return write_json(json.dumps({"type": "object"} if is_whole else True))[0], (f"schema at {place}",)


def find_need(schema: Any) -> str | None:
    """Return whether a schema may be left out, or is, of `HELD_NEEDS`; None where it does not say."""
    held = _read_held(schema)
    return None if held is None else held[3]


def leave_out(schema: SchemaObject) -> None:
    """Let `write_held` leave out a schema whose `HELD` says that it may."""
    schema[HELD] = [*schema[HELD][:3], LEFT_OUT]


def _read_held(schema: Any) -> tuple[str | None, bool | None, bool, str] | None:
    found = schema.get(HELD) if isinstance(schema, Mapping) else None
    match found:
        case [str() | None as place, bool() | None as strict, bool(is_whole), str(need)] if need in HELD_NEEDS:
            return place, strict, is_whole, need
    return None
