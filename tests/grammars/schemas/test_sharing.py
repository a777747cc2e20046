"""Tests of the parts of schemas that are written once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seesay.grammars.compile import TokenTable, compile_program
from seesay.grammars.schemas.json_program import write_json
from seesay.grammars.schemas.json_schema import rewrite_schema


def _write(schema: Any) -> Any:
    return rewrite_schema(json.dumps(schema), is_open=True)[0]


def _accepts(schema: Any, value: Any) -> bool:
    table = TokenTable([bytes([byte]) for byte in range(256)])
    matcher = compile_program(table, f"start: {write_json(json.dumps(schema), is_open=True)[0]}", forces=False)
    data = json.dumps(value).encode()
    return bool(matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting())


def test_equal_parts_are_one_definition() -> None:
    row = {"type": "object", "title": "a row", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}}
    other = {**row, "title": "another row"}  # what means nothing makes no difference
    written = _write({"type": "object", "properties": {"a": row, "b": {"type": "array", "items": other}}})
    assert written["properties"]["a"] == written["$defs"][written["properties"]["b"]["$ref"][8:]]["items"]
    assert len(written["$defs"]) == 3  # of the number, the row, and the list


NEVER = [
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"type": "integer", "minimum": 3.2, "maximum": 3.8},
    {"type": "integer", "exclusiveMinimum": 3, "maximum": 3},
    {"type": "string", "minLength": 5, "maxLength": 3},
    {"type": "string", "pattern": "^a$", "minLength": 5},
    {"type": "string", "format": "date", "pattern": "^a$"},
    {"type": "array", "items": False, "minItems": 1},
    {"type": "array", "items": {"type": "string"}, "minItems": 5, "maxItems": 3},
    {"enum": ["a"], "type": "integer"},
    {"type": "object", "properties": {"x": False}, "required": ["x"]},
    {"type": "object", "properties": {"x": {}}, "required": ["y"], "additionalProperties": False},
    {"type": "object", "properties": {"x": {"enum": ["a"], "type": "null"}}, "required": ["x"]},
]


@pytest.mark.parametrize("never", NEVER, ids=json.dumps)
def test_a_property_that_no_value_fits_is_left_out_still(never: Any) -> None:
    """As a definition it would have the schema refused."""
    schema = {"type": "object", "properties": {"a": never, "b": never, "c": {"type": "string"}}}
    assert _accepts(schema, {"c": "x"})
    assert not _accepts(schema, {"a": 4})


def test_what_is_shared_holds_beside_other_keywords() -> None:
    word = {"type": "string", "maxLength": 3}
    schema = {
        "type": "object",
        "properties": {"a": word, "b": word},
        "allOf": [{"properties": {"a": {"enum": ["yes", "never"]}}}, {"properties": {"b": {"minLength": 2}}}],
    }
    assert _accepts(schema, {"a": "yes", "b": "ab"})
    assert not _accepts(schema, {"a": "never"})
    assert not _accepts(schema, {"b": "a"})
    assert not _accepts(schema, {"b": "long"})


def test_recursion_goes_on_through_shared_parts() -> None:
    label = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    node = {"type": "object", "properties": {"label": label, "next": {"$ref": "#/$defs/node"}, "last": label}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    assert _accepts(schema, {"label": {"text": "a"}, "next": {"next": {"last": {"text": "b"}}}})
    assert not _accepts(schema, {"next": {"next": {"last": {"text": 1}}}})


def test_text_with_half_a_surrogate_pair_is_read() -> None:
    """In what is kept it is refused by name, elsewhere it is nothing."""
    assert _write({"type": "string", "title": "\ud83d"}) == {"type": "string"}
    assert "\ud83d" in write_json(json.dumps({"enum": ["\ud83d"]}))[0]
