"""Each keyword of JSON Schema is honoured or refused by name: no grammar allows a text that its schema does not."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import jsonschema
import pytest
from cpu_time import check_cpu_s
from grammars.byte_grammar import accepts, compile_schema, walk

from seesay.config.grammar import HELD, NEEDED, Grammar
from seesay.errors import RequestError
from seesay.grammars.program import make_program
from seesay.grammars.schemas.formats import FORMATS, KNOWN
from seesay.grammars.schemas.holding import write_held
from seesay.grammars.schemas.json_schema import rewrite_schema

INT, STR = {"type": "integer"}, {"type": "string"}
POINT = {"type": "object", "properties": {"x": INT}, "required": ["x"]}


def obj(**keys: Any) -> dict[str, Any]:
    return {"type": "object", **keys}


HONOURED: list[tuple[str, Any, list[Any]]] = [
    ("type", {"type": ["string", "null"]}, ["x", None]),
    ("type", {"type": "boolean"}, [True]),
    ("enum", {"type": "string", "enum": ["a", 1, 'b"\\\n']}, ["a", 'b"\\\n']),
    ("const", {"const": {"a": [1, None]}}, []),
    ("$ref", {"$ref": "#/$defs/a~1b", "$defs": {"a/b": INT}}, [3]),
    ("$ref", obj(properties={"v": INT, "next": {"$ref": "#"}}, required=["v"]), [{"v": 1, "next": {"v": 2}}]),
    ("anyOf", {"anyOf": [INT, {"type": "null"}]}, [None, 4]),
    ("oneOf", {"oneOf": [INT, STR]}, [1, "a"]),
    (
        "oneOf",
        {
            "type": "object",
            "properties": {"kind": STR},
            "oneOf": [
                {"required": ["kind"], "properties": {"kind": {"const": "a"}, "x": {"pattern": "p"}}},
                {"required": ["kind"], "properties": {"kind": {"const": "b"}, "x": {"pattern": "q"}}},
            ],
        },
        [{"kind": "a", "x": "p"}, {"kind": "b", "x": "q"}],
    ),
    (
        "oneOf",
        {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": STR},
            "oneOf": [
                {"properties": {"kind": {"const": "a"}, "x": {"pattern": "p"}}},
                {"properties": {"kind": {"const": "b"}, "x": {"pattern": "q"}}},
            ],
        },
        [{"kind": "a", "x": "p"}, {"kind": "b"}],
    ),
    (
        "oneOf",
        {
            "oneOf": [
                obj(properties={"kind": {"const": "a"}, "x": INT}, required=["kind"]),
                obj(properties={"kind": {"enum": ["b", "c"]}, "x": STR}, required=["kind"]),
            ]
        },
        [{"kind": "a", "x": 1}, {"kind": "c", "x": "s"}],
    ),
    (  # what is no object matches both
        "oneOf",
        {
            "required": ["type"],
            "oneOf": [
                {"properties": {"type": {"enum": ["a"]}, "x": INT}, "required": ["x"]},
                {"properties": {"type": {"enum": ["b"]}, "y": INT}},
            ],
        },
        [{"type": "a", "x": 1}, {"type": "b", "y": 2}],
    ),
    ("oneOf", {"oneOf": [{"required": ["a"]}, {"required": ["b"]}, INT]}, [{"a": 1}]),
    (  # a property that one part requires differs in another
        "oneOf",
        {
            "oneOf": [
                {"allOf": [{"$ref": "#/$defs/base"}, obj(properties={"k": {"const": "a"}})]},
                {"allOf": [{"$ref": "#/$defs/base"}, obj(properties={"k": {"const": "b"}})]},
            ],
            "$defs": {"base": obj(properties={"n": INT}, required=["k"])},
        },
        [{"n": 1, "k": "a"}, {"k": "b"}],
    ),
    (
        "oneOf",
        {
            "oneOf": [
                obj(properties={"a": POINT}, required=["a"], additionalProperties=True),
                obj(properties={"b": STR}, required=["b"], additionalProperties=True),
                obj(properties={"c": STR, "d": INT}, required=["c", "d"], additionalProperties=True),
            ]
        },
        [{"a": {"x": 1}}, {"b": "s"}, {"a": {"x": 1}, "b": 2}, {"b": "s", "c": "t"}, {"c": "t", "d": 1}],
    ),
    (
        "not",
        obj(properties={"a": {}}, **{"not": {"required": ["a"], "properties": {"a": STR}}}),
        [{}, {"a": 1}],
    ),
    ("allOf", {"allOf": [{"type": "integer", "minimum": 3}]}, [4]),
    ("minimum", {"type": "integer", "minimum": -3}, [-3, 100]),
    ("minimum", {"type": "integer", "minimum": 2.5}, [3]),
    ("minimum", {"type": "number", "minimum": 1.5}, [1.5, 2]),
    ("maximum", {"type": "number", "maximum": -1.25}, [-1.25, -3]),
    ("maximum", {"type": "integer", "minimum": 0, "maximum": 150}, [0, 99, 150]),
    ("exclusiveMinimum", {"type": "number", "exclusiveMinimum": 0}, [0.1, 1]),
    ("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 3, "exclusiveMinimum": -2}, [-1, 2]),
    ("multipleOf", {"type": "integer", "multipleOf": 7}, [14, 0]),
    ("minLength", {"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"]),
    ("maxLength", {"type": "string", "maxLength": 1}, ["", "é"]),
    ("pattern", {"type": "string", "pattern": '^a[^b]+"?$'}, ["axx"]),
    ("items", {"type": "array", "items": INT, "minItems": 1}, [[1], [1, 2]]),
    ("minItems", {"type": "array", "minItems": 2}, [[1, "x"]]),
    ("maxItems", {"type": "array", "items": INT, "maxItems": 2}, [[], [1, 2]]),
    ("prefixItems", {"type": "array", "prefixItems": [INT, STR], "items": INT, "minItems": 1}, [[1], [1, "x", 2]]),
    ("prefixItems", {"type": "array", "prefixItems": [INT, STR], "maxItems": 1}, [[1]]),
    ("additionalItems", {"type": "array", "items": [INT], "additionalItems": STR}, [[1, "x"]]),
    ("unevaluatedItems", {"type": "array", "prefixItems": [INT], "unevaluatedItems": False}, [[1]]),
    ("uniqueItems", {"type": "array", "items": INT, "uniqueItems": False}, [[1, 1]]),
    ("properties", obj(properties={'a"b': INT, "é": STR, "c": {"type": "array"}}), [{'a"b': 1, "é": "x"}, {}]),
    ("required", obj(properties={"a": INT, "b": INT}, required=["b"]), [{"b": 1}, {"a": 1, "b": 2}]),
    ("required", obj(required=["z"], additionalProperties=INT), [{"z": 1}]),
    ("additionalProperties", obj(additionalProperties=INT), [{"x": 1, "y": 2}]),
    ("additionalProperties", obj(properties={"a": INT, "ab": STR}, additionalProperties=STR), [{"a": 1, "abc": "x"}]),
    ("unevaluatedProperties", obj(properties={"a": INT}, unevaluatedProperties=False), [{"a": 1}]),
    ("patternProperties", obj(patternProperties={"^a+$": INT}, additionalProperties=False), [{"aa": 1}]),
    ("propertyNames", obj(propertyNames={"pattern": "^[a-c]+$"}, additionalProperties=INT), [{"ab": 1}]),
    ("minProperties", obj(properties={"a": INT, "b": INT, "c": INT}, minProperties=2), [{"a": 1, "c": 2}]),
    ("maxProperties", obj(properties={"a": INT, "b": INT}, required=["b"], maxProperties=1), [{"b": 1}]),
    ("maxProperties", obj(additionalProperties=INT, maxProperties=1), [{"b": 1}, {}]),
    ("format", {"type": "string", "format": "date"}, ["2024-02-29"]),
    ("unknown", {"type": "integer", "id": "x", "self": {}, "links": [], "readonly": True, "version": 1}, [3]),
    ("format", {"type": "string", "format": "no-such-format"}, ["anything"]),
    ("oneOf", {"oneOf": [obj(required=["a"], properties={"a": INT, "b": INT}), obj(required=["b"])]}, [{"a": 1}]),
    ("x-coerce", {"oneOf": [{"minimum": 3, "type": "integer"}, {"maximum": 2, "type": "integer"}], "x-coerce": True},
     [5, 1]),
    ("allOf", {"allOf": [INT, {"minimum": 3}, {"maximum": 9}]}, [4, 9]),
    ("allOf", {"allOf": [obj(properties={"a": INT}), obj(properties={"b": STR}, required=["b"])]},
     [{"a": 1, "b": "x"}]),
    ("$ref", {"$ref": "#/$defs/a", "$defs": {"a": INT}, "minimum": 3}, [3]),
    ("$id", {"$id": "http://x.y/a/", "$ref": "b", "$defs": {"n": {"$id": "b", "type": "integer"}}}, [3]),
    ("$anchor", {"$ref": "#here", "$defs": {"n": {"$anchor": "here", "type": "integer"}}}, [3]),
    ("multipleOf", {"type": "number", "multipleOf": 2}, [4, 2]),
    ("multipleOf", {"type": "integer", "multipleOf": 3, "minimum": 7}, [9]),
    ("anyOf", {"anyOf": [INT, STR], "minimum": 3}, [3, "a"]),
    ("enum", {"enum": [1, 5, "x"], "minimum": 3}, [5, "x"]),
    ("pattern", {"type": "string", "pattern": "^a+$", "minLength": 3, "maxLength": 5}, ["aaa"]),
    ("pattern", {"type": "string", "pattern": "b"}, ["abc"]),
    ("pattern", {"type": "string", "pattern": r"^[(]\(?=b[(?=]$"}, ["((=b=", "(=b?"]),
    ("not", {"type": "string", "not": {"enum": ["a", "bc", ""]}}, ["b", "abc"]),
    ("not", {"not": {"type": ["integer", "string"]}}, [None, [1]]),
    ("not", {"type": "integer", "not": {"const": 3}}, [2, 4]),
    ("not", obj(properties={"a": INT, "b": INT}, **{"not": {"required": ["a", "b"]}}), [{"a": 1}, {"b": 1}, {}]),
    ("not", obj(properties={"a": {"not": {}}, "b": INT}), [{"b": 1}]),
    ("not", {"not": {"anyOf": [{"type": "string"}, {"minimum": 3}]}, "type": ["string", "integer"]}, [2]),
    ("if", obj(properties={"k": {"enum": ["a", "b"]}, "n": INT}, required=["k"],
     **{"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["n"]}}), [{"k": "b"}, {"k": "a", "n": 1}]),
    ("if", {"type": "integer", "if": {"minimum": 3}, "then": {"multipleOf": 2}, "else": {"maximum": 0}}, [4, 0]),
    ("dependentRequired", obj(properties={"a": INT, "b": INT}, dependentRequired={"a": ["b"]}),
     [{"b": 1}, {"a": 1, "b": 2}]),
    ("dependentSchemas",
     obj(properties={"a": INT, "b": INT}, dependentSchemas={"a": {"properties": {"b": {"minimum": 5}}}}),
     [{"b": 1}, {"a": 1, "b": 6}]),
    ("dependencies", obj(properties={"a": INT, "b": INT}, dependencies={"a": ["b"]}), [{"b": 1}, {"a": 1, "b": 2}]),
    (
        "dependentRequired",
        obj(
            properties=dict.fromkeys("abcde", INT),
            dependentRequired={"a": ["c"], "b": ["c", "b"], "c": ["d"], "d": [], "e": ["d", "c"]},
        ),
        [{}, {"d": 1}, {"c": 1, "d": 1}, {"a": 1, "c": 1, "d": 1}, dict.fromkeys("abcde", 1)],
    ),
    (  # a property that may be missing differs in what both share
        "oneOf",
        {
            "required": ["n"],
            "properties": {"n": INT},
            "oneOf": [
                {"properties": {"k": {"$ref": "#/$defs/a"}}},
                {"properties": {"k": {"enum": ["b", 1]}, "m": INT}, "required": ["m"]},
                {"properties": {"k": {"type": "boolean"}, "m": STR}, "required": ["m"]},
            ],
            "$defs": {"a": {"const": "a"}},
        },
        [{"n": 1, "k": "a"}, {"n": 1, "k": "b", "m": 2}, {"n": 1, "k": True, "m": "s"}, {"n": 1, "k": "a", "m": 2}],
    ),
    (  # the same reference means different schemas
        "oneOf",
        {
            "oneOf": [
                {"properties": {"k": {"$ref": "#/$defs/x"}}},
                {"$ref": "http://x.y/other"},
            ],
            "$defs": {
                "x": {"const": "a"},
                "other": {
                    "$id": "http://x.y/other",
                    "type": "object",
                    "properties": {"k": {"$ref": "#/$defs/x"}},
                    "$defs": {"x": {"enum": ["a", "b"]}},
                },
            },
        },
        [{"k": "b"}],
    ),
    ("uniqueItems", {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
     [["c", "a"], ["b"]]),
    ("uniqueItems", {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}, [[True, False], []]),
    ("uniqueItems", {"type": "array", "items": {"enum": list("abcdefgh")}, "uniqueItems": True}, [["a", "h"]]),
    ("uniqueItems", {"type": "array", "uniqueItems": True, "maxItems": 1}, [[3]]),
    ("contains", {"type": "array", "items": INT, "contains": {"const": 3}}, [[3], [1, 3, 2]]),
    ("propertyNames", obj(properties={"b": INT}, propertyNames={"pattern": "^a+$"}), [{"aa": 1}, {}]),
    ("propertyNames", obj(propertyNames={"maxLength": 3}), [{"abc": 1}]),
    ("propertyNames", obj(propertyNames={"enum": ["a", "b"]}, additionalProperties=INT), [{"a": 1, "b": 2}]),
    ("patternProperties", obj(properties={"ab": STR}, patternProperties={"^x": INT}), [{"ab": "s", "xy": 1}]),
    ("patternProperties", obj(patternProperties={"^a": INT, "^b": STR}), [{"a": 1, "b": "x"}]),
    ("minProperties", obj(properties={"a": INT}, additionalProperties=INT, minProperties=1), [{"z": 1}, {"a": 1}]),
    ("maxProperties", obj(properties={"a": INT, "b": INT, "c": INT}, maxProperties=2), [{"a": 1, "c": 1}, {}]),
    ("false", {"anyOf": [False, INT]}, [3]),
    ("false", obj(properties={"a": False, "b": INT}, additionalProperties=True), [{"b": 1, "c": 2}]),
    ("unevaluatedProperties", {"allOf": [{"$ref": "#/$defs/a"}], "properties": {"a": INT, "b": INT}, "type": "object",
     "unevaluatedProperties": False, "$defs": {"a": obj(properties={"a": {"minimum": 2}})}}, [{"a": 3, "b": 1}]),
    ("exclusiveMinimum", {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 3,
     "exclusiveMinimum": True}, [4]),
]  # fmt: skip

REFUSED: list[tuple[str, Any]] = [
    ("not", {"type": "string", "not": {"pattern": "a"}}),
    ("uniqueItems", {"type": "array", "uniqueItems": True}),
    ("uniqueItems", {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    ("maxContains", {"type": "array", "contains": {"const": 3}, "maxContains": 2}),
    ("$ref", {"$ref": "http://example.com/schema"}),
    ("$ref", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    ("$ref", {"$ref": "#/nowhere"}),
    ("oneOf", {"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}),
    ("multipleOf", {"type": "integer", "multipleOf": 0}),
    ("pattern", {"type": "string", "pattern": r"(a)\1"}),
    ("pattern has lookaround", {"type": "string", "pattern": r"^[(]\(a(?!b)"}),
    ("pattern has lookaround", {"type": "string", "pattern": "(?<=a)b"}),
    ("propertyNames", obj(propertyNames={"format": "uuid", "pattern": "a"})),
    ("minProperties", obj(additionalProperties=INT, minProperties=2)),
    ("maxProperties", obj(properties={"a": INT}, additionalProperties=INT, maxProperties=2)),
    ("unevaluatedProperties", {"anyOf": [{"properties": {"a": INT}}], "unevaluatedProperties": False}),
    ("enum", {"enum": []}),
    ("enum", {"enum": ["\u0001"]}),
    ("const", {"const": 2**53 + 1}),
    ("const", {"const": "x" * 20_001}),
    ("type", {"type": "strnig"}),
    ("type", {"type": "object", "properties": {"a": {"type": ["x"]}}}),
    ("minimum", {"type": "integer", "minimum": 10**400}),
    ("minItems", {"type": "array", "minItems": 10**400}),
    ("it allows no value", False),
    ("$dynamicRef", {"$dynamicRef": "#x", "$defs": {"a": {"$dynamicAnchor": "x"}, "b": {"$dynamicAnchor": "x"}}}),
    ("no value fits", obj(properties={"a": {"$ref": "#"}}, required=["a"])),
    ("no value fits", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    ("no value fits", {"anyOf": [INT, {"$ref": "#/$defs/a"}], "$defs": {
        "a": obj(properties={"b": {"$ref": "#/$defs/b"}}, required=["b"]),
        "b": {"type": "array", "prefixItems": [INT, {"$ref": "#/$defs/a"}], "minItems": 2},
    }}),
]  # fmt: skip


def validator_of(schema: Any) -> Any:
    if "$schema" in schema:
        return jsonschema.validators.validator_for(schema)
    is_old = isinstance(schema.get("items"), list) or "dependencies" in schema
    return jsonschema.Draft7Validator if is_old else jsonschema.Draft202012Validator


@pytest.mark.parametrize(("keyword", "schema", "values"), HONOURED, ids=lambda value: str(value)[:40])
def test_texts_that_a_grammar_allows_are_valid(keyword: str, schema: Any, values: list[Any]) -> None:
    compiled = compile_schema(schema)
    assert all(accepts(compiled, json.dumps(value, ensure_ascii=False)) for value in values)
    validator = validator_of(schema)
    rng, ended = random.Random(keyword), 0
    for _ in range(60):
        text = walk(compiled, rng)
        if text is not None:
            ended += 1
            validator(schema).validate(json.loads(text, parse_constant=_fail, parse_float=_read_number))
    assert ended >= 3
    for value in values:  # and what is near them
        for _ in range(40):
            near = _mutate(json.dumps(value, ensure_ascii=False), rng)
            if accepts(compiled, near):
                validator(schema).validate(json.loads(near, parse_constant=_fail, parse_float=_read_number))


def _read_number(text: str) -> Decimal | float:
    """As exact as the grammar is; beyond what a Decimal holds, infinity."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def _fail(name: str) -> None:
    raise AssertionError(name)


def _mutate(text: str, rng: random.Random) -> str:
    chars = list(text)
    for _ in range(rng.randint(1, 2)):
        place = rng.randrange(len(chars) + 1)
        piece = rng.choice(['"', "\\", "0", "1", "9", "-", ".", "a", "b", ",", "[", "]", "}", "null", "e5", "\\u0061"])
        chars[place : place + rng.randint(0, 1)] = [piece]
    return "".join(chars)


@pytest.mark.parametrize(("keyword", "schema"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_honoured_is_refused_by_name(keyword: str, schema: Any) -> None:
    with pytest.raises(RequestError, match=rf"^response_format: schema at .*{keyword.replace('$', '.')}"):
        rewrite_schema(json.dumps(schema), is_open=False)


@pytest.mark.parametrize("schema", [STR, {"type": "string", "pattern": "^[^a]*$"}, {"type": "string", "minLength": 1}])
def test_strings_of_raw_bytes_are_valid_unicode(schema: Any) -> None:
    """Each token is a byte, as of vocabularies that fall back on bytes: halves, surrogates and long spellings are not
    allowed, nor is what comes behind the beginning of another character."""
    compiled = compile_schema(schema)
    for text in ("é", "\u20ac", "😀", "\ud7ff", "\ue000", "\U0010ffff"):
        assert accepts(compiled, f'"{text}"')
    for data in (
        b"\xff",
        b"\x80",
        b"\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
    ):
        assert not accepts(compiled, b'"' + data + b'"'), data
        assert not accepts(compiled, b'"' + data + b'b"'), data


def test_a_pattern_beside_a_large_maxlength_allows_what_matches_both() -> None:
    compiled = compile_schema({"type": "string", "pattern": r"^(?:\S+\s+){0,99}\S+$", "maxLength": 1500})
    assert accepts(compiled, '"What is the meaning of it?"') and not accepts(compiled, '"What "')


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_has_not_are_refused(number: str) -> None:
    for source in (f'{{"const": {number}}}', f'{{"type": "array", "minItems": {number}}}'):
        with pytest.raises(RequestError, match=rf"schema at \$: the schema is not JSON: {number} is no number"):
            rewrite_schema(source, is_open=False)


def test_references_to_references_take_time_in_proportion() -> None:
    names = [f"a{index}" for index in range(4000)]
    links = {name: {"$ref": f"#/$defs/{other}"} for name, other in zip(names, [*names[1:], "end"], strict=True)}
    schema = {"$defs": {**links, "end": INT}, "anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    source = json.dumps(schema)
    check_cpu_s(lambda: rewrite_schema(source, is_open=False), 2.0)


def test_schemas_of_which_few_match_at_once_are_small() -> None:
    """Each of them is written without the others, whose opposites are one schema each."""
    names = [f"p{i}" for i in range(8)]
    schema = {"oneOf": [obj(properties={name: obj(required=["x"])}, required=[name]) for name in names]}
    program = make_program(Grammar(kind="json_schema", source=json.dumps(schema)))
    assert len(program.source) < 12_000
    grown = {"oneOf": [{"allOf": [{"required": ["k"]}, {"properties": {"k": {"const": name}}}]} for name in names]}
    assert len(make_program(Grammar(kind="json_schema", source=json.dumps(grown))).source) < 2_000
    optional = {"oneOf": [{"properties": {"k": {"const": "word" * 9 + name}}} for name in names]}
    assert len(make_program(Grammar(kind="json_schema", source=json.dumps(optional))).source) < 8_000
    needy = obj(properties={}, dependentRequired={name: ["p0"] for name in names})
    assert json.dumps(rewrite_schema(json.dumps(needy), is_open=True)[0]).count("anyOf") == 1


def test_schemas_that_name_themselves_and_end_are_taken() -> None:
    for schema in (
        obj(properties={"a": {"$ref": "#"}}),
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [INT, {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}]},
        {"$ref": "#/$defs/x0", "$defs": {f"x{i}": {"anyOf": [{"$ref": f"#/$defs/x{i + 1}"}, INT]} for i in range(900)}
         | {"x900": STR}},
    ):  # fmt: skip
        rewrite_schema(json.dumps(schema), is_open=False)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", r'{"const": "\ud800"}'),
        ("regex", "\ud800"),
        ("choice", r'["\udfff"]'),
        ("ebnf", 'root ::= "\ud800"'),
    ],
)
def test_lone_surrogates_are_refused(kind: str, source: str) -> None:
    with pytest.raises(RequestError, match=r"surrogate|no character"):
        make_program(Grammar(kind=kind, source=source))


def test_strict_false_leaves_open_what_the_schema_leaves_open() -> None:
    schema = obj(properties={"a": INT}, required=["a"])
    closed, opened = compile_schema(schema), compile_schema(schema, is_open=True)
    assert not accepts(closed, '{"a": 1, "b": [null]}') and accepts(opened, '{"a": 1, "b": [null]}')
    assert not accepts(opened, '{"a": "x"}') and not accepts(opened, '{"a": 1, "a": "x"}')
    assert not accepts(opened, '{"a": 1, "\\u0061": "x"}')


def test_strict_false_holds_what_can_be_held_and_says_what_is_left_out() -> None:
    schema = obj(
        properties={
            "a": {"type": "array", "items": INT, "uniqueItems": True},
            "b": {"oneOf": [{"pattern": "x"}, {"pattern": "y"}]},
            "c": {"type": "string", "pattern": "(?=.*[a-z])^.{8}$"},
        }
    )
    program = make_program(Grammar(kind="json_schema", source=json.dumps(schema), is_open=True))
    assert program.left_out == ("uniqueItems at $.properties.a", "oneOf at $.properties.b", "pattern at $.properties.c")
    compiled = compile_schema(schema, is_open=True)
    assert accepts(compiled, '{"a": [1, 1], "b": null}') and not accepts(compiled, '{"a": ["x"]}')
    with pytest.raises(RequestError, match=r"schema at \$\.properties\.a: uniqueItems"):
        make_program(Grammar(kind="json_schema", source=json.dumps(schema)))


@pytest.mark.parametrize(
    ("schema", "left_out"),
    [
        ({"$ref": "#/$defs/none", "type": "string"}, "$ref"),
        ({"$ref": "https://example.com/schema.json"}, "$ref"),
        ({"type": "string", "pattern": "[a-z"}, "pattern"),
        ({"type": "string", "pattern": "a{2,1}"}, "pattern"),
        ({"type": "string", "format": "date", "enum": ["\x01", "2026-12-01"]}, "enum"),
        ({"type": "integer", "minimum": -(2**63)}, "minimum"),
        ({"type": "array", "minItems": 10**6}, "minItems or maxItems"),
        (obj(patternProperties={"^(?=a)": INT}, additionalProperties=False), "patternProperties"),
        ({"type": "any"}, "type"),
    ],
)
def test_strict_false_leaves_out_one_keyword_and_holds_the_others(schema: Any, left_out: str) -> None:
    whole = obj(properties={"a": schema, "b": INT}, required=["a", "b"])
    program = make_program(Grammar(kind="json_schema", source=json.dumps(whole), is_open=True))
    assert program.left_out == (f"{left_out} at $.properties.a",)
    compiled = compile_schema(whole, is_open=True)
    example = {"string": "2026-12-01", "integer": -5, "array": [], "object": {"x": 1}}.get(schema.get("type"), 1)
    assert accepts(compiled, json.dumps({"a": example, "b": 1}))
    assert not accepts(compiled, json.dumps({"a": example, "b": "x"}))
    if schema.get("type") != "any" and "type" in schema:
        assert not accepts(compiled, '{"a": null, "b": 1}')


def test_a_function_that_is_not_strict_loses_a_wrong_pattern_alone() -> None:
    schema = obj(properties={"a": {"type": "string", "pattern": "["}, "b": INT}, required=["b"])
    for strict in (None, False):
        written, left_out = write_held({HELD: ["tools[0].function.parameters", strict, True, NEEDED], **schema})
        assert left_out == ("pattern at tools[0].function.parameters.properties.a",) and '"required":["b"]' in written


def test_strict_false_leaves_out_a_one_of_with_a_reference_to_nothing() -> None:
    schema = obj(properties={"a": {"oneOf": [{"$ref": "#/none"}, STR]}})
    program = make_program(Grammar(kind="json_schema", source=json.dumps(schema), is_open=True))
    assert program.left_out == ("$ref at $.properties.a.oneOf[0]", "oneOf at $.properties.a")
    with pytest.raises(RequestError, match=r"properties\.a\.oneOf\[0\]: \$ref '#/none' does not exist"):
        make_program(Grammar(kind="json_schema", source=json.dumps(schema)))


def test_a_required_property_that_properties_do_not_name_may_have_any_value() -> None:
    compiled = compile_schema(obj(properties={"a": INT}, required=["a", "b"]))
    assert accepts(compiled, '{"a": 1, "b": [null]}') and not accepts(compiled, '{"a": 1}')
    assert not accepts(compiled, '{"a": 1, "b": 2, "c": 3}')
    with pytest.raises(ValueError, match="required property 'b'"):
        compile_schema(obj(properties={"a": INT}, required=["b"], additionalProperties=False))


def test_combined_objects_are_closed_with_the_names_of_all_parts() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/base"}, obj(properties={"b": STR})],
        "$defs": {"base": obj(properties={"a": INT}, required=["a"])},
    }
    compiled = compile_schema(schema)
    assert accepts(compiled, '{"a": 1, "b": "x"}') and not accepts(compiled, '{"a": 1, "c": 2}')
    assert accepts(compile_schema(schema, is_open=True), '{"a": 1, "c": 2}')


def test_tools_without_parameters_take_nothing() -> None:
    for schema in (obj(properties={}), obj(properties={}, additionalProperties=False), obj(additionalProperties=False)):
        compiled = compile_schema(schema)
        assert accepts(compiled, "{}") and not accepts(compiled, '{"a": 1}')


CHECKS: dict[str, Callable[[str], Any]] = {
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
    "regex": re.compile,
    "email": lambda text: jsonschema.FormatChecker().check(text, "email"),
}


@pytest.mark.parametrize("name", sorted({*FORMATS, *KNOWN}))
def test_texts_of_a_format_are_valid(name: str) -> None:
    compiled, rng, ended = compile_schema({"type": "string", "format": name}), random.Random(name), 0
    for _ in range(80):
        text = walk(compiled, rng)
        if text is not None:
            ended += 1
            CHECKS.get(name, str)(json.loads(text))
    assert ended >= 3


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "2024-04-31", "0000-01-01"]),
        ("date-time", ["2024-02-29T23:59:59.5+01:00", "2023-01-01T00:00:00Z"], ["2023-02-29T00:00:00Z"]),
        ("ipv6", ["::1", "::", "1:2:3:4:5:6:7:8", "fe80::a"], ["1::2::3", "1:2:3:4:5:6:7:8:9", ":1"]),
        ("ipv4", ["255.0.10.1"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
        ("duration", ["P1Y2M3DT4H5M6S", "P3W", "PT5S"], ["P", "PT", "1D"]),
        ("email", ["a.b@c.de"], ["a@", "@b", "a b@c.de"]),
        ("hostname", ["a-b.example", "a", "1a.b2", "a--b.c", f"{'a' * 63}." * 3 + "a" * 61], ["-a", "a..b", "a-"]),
        ("hostname", ["aa-b", "aaa"], ["xn--X", "b.XN--aa", "a" * 64, f"{'a' * 63}." * 3 + "a" * 62, "a.", "", "é"]),
        ("idn-hostname", ["a.b"], ["xn--X"]),
        ("json-pointer", ["", "/a/~0~1"], ["a", "/~2"]),
        ("relative-json-pointer", ["0", "0#", "12/a/0", "0//"], ["", "01", "-1/a", "/a", "0##", "1#/a", "0/~2", "1\n"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
        (
            "regex",
            ["^a(b|[a-z]+)*$", "x{3}", r"\d+\.?", "", "[a-z]{3,16}", "x{9,10}", "x{0,5}"],
            ["*", "\\", "(a", "a)", "[z-a]", "a{3,2}", "a{16,3}", "a{20,10}"],
        ),
        ("uri-template", ["http://x.y/{id}?a={b,c}"], ["{", "a}b{"]),
        ("uri-reference", ["/a/b?c#d", "a/b", "http://x.y:80/", "//x.y//a", "", "#x"], ["://", "a b", "\\\\"]),
        ("uri-reference", ["/", "/a//b", "?q", "mailto:a@b.c"], ["//a@b@c.de/", "//c.de:x/p", "//", "///a"]),
        ("iri", ["http://x.y/"], ["not-an-iri"]),
    ],
)
def test_formats(name: str, good: list[str], bad: list[str]) -> None:
    compiled = compile_schema({"type": "string", "format": name})
    assert [text for text in good if not accepts(compiled, json.dumps(text))] == []
    assert [text for text in bad if accepts(compiled, json.dumps(text))] == []


@pytest.mark.parametrize("pattern", [r"^\s$", r"^[\s]$", r"^[^\S]$"])
def test_spaces_are_those_of_ecmascript(pattern: str) -> None:
    """The byte order mark is one, the control character U+0085 is none."""
    spaces, others = [" ", "\n", "\u00a0", "\u2003", "\ufeff"], ["a", "é", "\x85", '"', "\\"]
    compiled = compile_schema({"type": "string", "pattern": pattern})
    negated = compile_schema({"type": "string", "pattern": pattern.swapcase()})
    for text in [*spaces, *others]:
        data = json.dumps(text, ensure_ascii=False)
        assert accepts(compiled, data) == (text in spaces), repr(text)
        assert accepts(negated, data) == (text in others), repr(text)
