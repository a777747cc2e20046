"""Texts that follow a grammar, inside of a JSON string: the argument of a custom tool.

Each character is one as JSON spells it, with the short escapes alone, so control characters without one have no
spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seesay.errors import ErrorCode, RequestError, show
from seesay.grammars.character_set import CharacterSet
from seesay.grammars.lark_reader import read_lark
from seesay.grammars.regex import read_regex
from seesay.grammars.rules import Node, Rules, settle

KEYWORD = "x-grammar"
"""The keyword of a string's schema that has the grammar, as `{"syntax": …, "definition": …}`."""
SYNTAXES = ("lark", "regex")
_LETTERS = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_UNSPELLED = CharacterSet.of([(0, 0x1F)]) | CharacterSet.chars('"\\')


def find_text_grammar(schema: object) -> tuple[str, Mapping[str, Any]] | None:
    """Return (what stands before the string, its grammar) where a schema is that of a string with a grammar, or of an
    object with one as its only property, which is required; else None."""
    if not isinstance(schema, Mapping):
        return None
    if _is_text_grammar(schema.get(KEYWORD)):
        return "", schema[KEYWORD]
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or len(properties) != 1 or schema.get("required") != [*properties]:
        return None
    [(name, inner)] = properties.items()
    if not isinstance(inner, Mapping) or not _is_text_grammar(inner.get(KEYWORD)):
        return None
    return name, inner[KEYWORD]


def _is_text_grammar(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"syntax", "definition"}


def read_quoted(grammar: Mapping[str, Any], where: str) -> Rules:
    """Return the rules of a grammar's texts as they stand between the quotes of a JSON string; the first is the root.
    Raises `RequestError` that begins with `where` for a fault."""
    syntax, definition = grammar["syntax"], grammar["definition"]
    if syntax not in SYNTAXES:
        raise _refuse(where, f"syntax must be one of {', '.join(SYNTAXES)}, got {show(syntax)}")
    if not isinstance(definition, str) or not definition:
        raise _refuse(where, f"definition must be a non-empty string, got {show(definition)}")
    if syntax == "lark":
        rules = read_lark(definition, where)
    else:
        rules = {"start": read_regex(definition, f"{where}: the regular expression")}
    quoted = {name: _quote(node) for name, node in rules.items()}
    return settle(quoted, next(iter(rules)), lambda why: _refuse(where, why), "the grammar, as JSON spells its texts,")


def _refuse(where: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"{where}: {why}", "response_format")


def _quote(node: Node) -> Node:
    if node.kind != "chars":
        return replace(node, parts=list(map(_quote, node.parts)))
    plain = Node("chars", chars=node.chars - _UNSPELLED)
    letters = "".join(letter for char, letter in _LETTERS.items() if ord(char) in node.chars)
    if not letters:
        return plain
    escape = [Node("chars", chars=CharacterSet.chars("\\")), Node("chars", chars=CharacterSet.chars(letters))]
    return Node("choice", [plain, Node("sequence", escape)]) if plain.chars else Node("sequence", escape)
