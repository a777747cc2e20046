"""Tests of the places that faults of schemas are told with."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from seesay.config.grammar import HELD, NEEDED, OPTIONAL, Grammar
from seesay.grammars.compile import TokenTable, compile_program
from seesay.grammars.program import make_program
from seesay.grammars.schemas.faults import leave_out_refused, name_place
from seesay.templates.parsers.arguments import as_part


@pytest.fixture(scope="module")
def table() -> TokenTable:
    return TokenTable([bytes([byte]) for byte in range(256)])


def _tell(table: TokenTable, source: Any, kind: str = "json_schema") -> str:
    grammar = Grammar(kind=kind, source=json.dumps(source) if kind != "lark" else source)
    with pytest.raises(ValueError) as caught:
        compile_program(table, make_program(grammar).source)
    return name_place(table, grammar, str(caught.value))


def _inside(schema: Any, required: bool = True) -> dict[str, Any]:
    item = {"type": "object", "properties": {"n": schema}, "required": ["n"] if required else []}
    rows = {"type": "array", "items": item, "minItems": 1}
    return {"type": "object", "properties": {"name": {"type": "string"}, "rows": rows}, "required": ["name", "rows"]}


_PLACE = "response_format: schema at $.properties.rows.items.properties.n: "


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string", "pattern": "a["}, "a[ is no regular expression that is known: unclosed character class"),
        (
            {"type": "integer", "minimum": 5, "maximum": 3},
            "it allows no value: minimum (5) is greater than maximum (3)",
        ),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "it allows no value: minLength (5) is greater than"),
        ({"type": "string", "format": "email", "pattern": "^[0-9]+$"}, "it allows no value: no text matches all"),
        ({"enum": ["a"], "type": "integer"}, "it allows no value: incompatible types"),
        (
            {"type": "object", "patternProperties": {"^a": {}, "a$": {}}},
            "patternProperty regexes /^a/ and /a$/ are not",
        ),
    ],
)
def test_a_fault_of_a_schema_has_its_place(table: TokenTable, schema: Any, why: str) -> None:
    assert _tell(table, _inside(schema)).startswith(_PLACE + why)
    assert _tell(table, schema).startswith("response_format: schema at $: " + why)


def test_a_fault_of_a_definition_has_its_place(table: TokenTable) -> None:
    schema = {**_inside({"$ref": "#/$defs/word"}), "$defs": {"word": {"type": "string", "pattern": "("}}}
    assert "( is no regular expression" in (told := _tell(table, schema))
    assert told.startswith(_PLACE)


def test_a_schema_that_needs_no_such_value_is_not_named(table: TokenTable) -> None:
    """An optional property without values is left out; the fault is another one."""
    never = {"type": "integer", "minimum": 5, "maximum": 3}
    schema = {"type": "object", "properties": {"no": never, "odd": {"type": "string", "pattern": "["}}}
    assert _tell(table, schema).startswith("response_format: schema at $.properties.odd: ")


def test_a_fault_of_a_function_names_it(table: TokenTable) -> None:
    schemas = [
        {HELD: [f"tools[{i}].function.parameters", True, False, NEEDED], **_inside(one)}
        for i, one in enumerate([True, {"pattern": "["}])
    ]
    tags = [
        {"type": "tag", "begin": f"<{i}>", "content": {"type": "json_schema", "json_schema": one}, "end": "."}
        for i, one in enumerate(schemas)
    ]
    told = _tell(table, {"format": {"type": "or", "elements": tags}}, "structural_tag")
    where = "schema at $.properties.rows.items.properties.n: [ is no regular expression"
    assert told.startswith(f"response_format.tools[1].function.parameters: {where}")


def test_optional_schemas_that_are_refused_are_left_out(table: TokenTable) -> None:
    """Those of single arguments, too, as some formats of calls have them."""
    never = {"type": "integer", "minimum": 5, "maximum": 3}
    whole = {HELD: ["tools[0].function.parameters", None, True, OPTIONAL], "properties": {"x": never, "y": True}}
    parts: list[Any] = [
        as_part(never, whole, "properties.x"),
        as_part({"type": "string"}, whole, "properties.y"),
        {HELD: ["tools[1].function.parameters", None, True, OPTIONAL], **_inside(never)},
    ]
    elements = [{"type": "json_schema", "json_schema": part} for part in parts]
    tag = {"type": "sequence", "elements": elements}
    rest = leave_out_refused(table, Grammar(kind="structural_tag", source=json.dumps({"format": tag})))
    assert rest is not None and leave_out_refused(table, rest) is None
    places = ("tools[0].function.parameters.properties.x", "tools[1].function.parameters")
    program = make_program(rest)
    assert program.left_out == tuple(f"schema at {place}" for place in places)
    compile_program(table, program.source)
    parts[0][HELD] = parts[2][HELD] = ["tools[0].function.parameters", None, True, NEEDED]
    assert leave_out_refused(table, Grammar(kind="structural_tag", source=json.dumps({"format": tag}))) is None


def test_the_search_is_short(table: TokenTable) -> None:
    """Of a schema whose parts are fine, or take long."""
    properties: dict[str, Any] = {str(i): _inside({"type": "string"}) for i in range(3000)}
    schema = {"type": "object", "properties": {**properties, "last": {"type": "string", "pattern": "["}}}
    started_s = time.process_time()
    told = _tell(table, schema)
    assert time.process_time() - started_s < 2.5
    assert "is no regular expression" in told


def test_faults_of_other_grammars_keep_their_lines(table: TokenTable) -> None:
    assert _tell(table, "start: x", "lark") == 'at 1(8): unknown name: "x"'


def test_schemas_of_one_of_that_differ_in_optional_properties_alone_are_told_what_to_use(table: TokenTable) -> None:
    one, other = ({"type": "object", "properties": {name: {"type": "integer"}}} for name in "xy")
    schema = {"type": "object", "properties": {"a": {"oneOf": [one, other]}}, "required": ["a"]}
    why = _tell(table, schema)
    assert why.startswith("response_format: schema at $.properties.a: it allows no value") and "use anyOf" in why
