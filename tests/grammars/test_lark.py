"""Texts of Lark's grammars as JSON spells them, which custom tools take."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from grammars.byte_grammar import accepts, compile_grammar, walk

from seesay.config.grammar import Grammar
from seesay.errors import RequestError
from seesay.grammars.quoted_text import read_quoted

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""As coding agents send it."""
SUMS = r"""
?start: sum            // a comment
!sum: product
    | sum ("+" | "-") product
product.2: atom ("*" atom)*
atom: NUMBER
    | "(" sum ")"
%import common.NUMBER
%import common (WS, CNAME)
%ignore WS
# another one
"""
QUERY = r"""
start: "select"i columns "from"i NAME [where] ";"
columns: "*" | NAME ("," NAME)*
where: "where"i NAME OPERATOR (INT | TEXT)
OPERATOR: "=" | "<>"
NAME: "a".."z" /[a-z0-9_]/~0..5
TEXT: "'" /[^']/{,20} "'"
%import common.INT
%import common.WS -> BLANK
%ignore BLANK
"""


@cache
def compile_text(definition: str, syntax: str = "lark") -> Any:
    text = {"type": "string", "x-grammar": {"syntax": syntax, "definition": definition}}
    schema = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    tag = {"format": {"type": "json_schema", "json_schema": schema}}
    return compile_grammar(Grammar(kind="structural_tag", source=json.dumps(tag)))


def takes(definition: str, text: str, syntax: str = "lark") -> bool:
    return accepts(compile_text(definition, syntax), json.dumps({"input": text}, ensure_ascii=False))


@pytest.mark.parametrize(
    ("definition", "text", "is_taken"),
    [
        (PATCH, '*** Begin Patch\n*** Add File: a "b"\\c.py\n+print("x\\n")\n+\n*** End Patch', True),
        (PATCH, '*** Begin Patch\n*** Update File: é😀\n@@ def "f"\n-a\n+\tb\n c\n*** End Patch\n', True),
        (PATCH, "*** Begin Patch\n*** Add File: a\n" + '+a "line"\n' * 200 + "*** End Patch", True),
        (PATCH, "*** Begin Patch\n*** End Patch", False),
        (PATCH, "*** Begin Patch\n*** Delete File: a\n*** End Patch\nmore", False),
        (SUMS, "1+2", True),
        (SUMS, " 1.5 *\n( 2e3 - 3 )\t", True),
        (SUMS, "1+", False),
        (SUMS, "12 34", False),
        (SUMS, "(1", False),
        (QUERY, "SELECT a, b_2\nFROM t WHERE a = 'x \"y\" \\ z' ;", True),
        (QUERY, "select * from t;", True),
        (QUERY, "select * from 1;", False),
        (QUERY, f"select * from t where a = '{'x' * 21}';", False),
        ('start: "a"~2 /b/i "\\u00e9\\x41"', "aabéA", True),
        ('start: "a"~2 /b/i "\\u00e9\\x41"', "aaBéA", True),
        ('start: "a"~2 /b/i "\\u00e9\\x41"', "abéA", False),
        ("start: /a.b/s", "a\nb", True),
        ("start: /a.b/", "a\nb", False),
        ("start: /[^a]/i", "A", False),
        ('start: "a" start? "b"', "aaabbb", True),
        ('start: "a" start? "b"', "aaabb", False),
        ("start: /a\\/b/ // c", "a/b", True),
    ],
)
def test_texts_of_a_grammar(definition: str, text: str, is_taken: bool) -> None:
    assert takes(definition, text) is is_taken


def test_the_quotes_are_the_strings_own() -> None:
    """What would end the string early, or needs an escape, is allowed as JSON spells it alone."""
    compiled = compile_text("start: /.*/s")
    for written, is_taken in (
        (r'{"input": "\"\\\n\t\b"}', True),
        ('{"input": ""}', True),
        ('{"input": """}', False),
        ('{"input": "\n"}', False),
        (r'{"input": "\u0041"}', False),
        (r'{"input": "\'}', False),
        (r'{"input": "a", "b": 1}', False),
    ):
        assert accepts(compiled, written) is is_taken, written
    assert takes(r"\d{2}\n(?:a|\")+", '12\na"a', "regex") and not takes(r"\d{2}", "123", "regex")


@pytest.mark.parametrize("definition", [PATCH, SUMS], ids=["patch", "sums"])
def test_random_texts_are_json_and_of_the_grammar_itself(definition: str) -> None:
    """The grammar itself is that of an answer which is not quoted."""
    plain = compile_grammar(Grammar(kind="ebnf", source=definition.replace("product.2:", "product:")))
    rng, num_ended = random.Random(3), 0
    for _ in range(80):
        written = walk(compile_text(definition), rng)
        if written is not None:
            num_ended += 1
            assert accepts(plain, json.loads(written)["input"].lstrip(" \n\t\r\f")), written
    assert num_ended


@pytest.mark.parametrize(
    ("definition", "error"),
    [
        ("begin: /a/", "has no rule 'start'"),
        ("start: other", "has no rule 'other', which 'start' names"),
        ("start: start", "from the rule 'start' no text can be made"),
        ('start: "a"\nstart: "b"', "line 2 defines 'start' again"),
        ("start: /(?=a)b/", "has lookahead"),
        ("start: /a/x", "has a flag that is not i, s or u"),
        ("start: <think>", "line 1 is not supported in Lark"),
        ("start: @other", "line 1 is not supported in Lark"),
        ("start: %json {}", "is not supported in Lark"),
        ('start[lazy]: "a"', "has attributes"),
        ("%declare A\nstart: A", "line 1 is not supported in Lark"),
        ("start: A\n%import common.NOTHING", "imports 'NOTHING'"),
        ("start: A\n%import other.A", "imports what is not there"),
        ('start: ("a"', "has a \\( that is not closed"),
        ('start: "b".."a"', "has a range that is not"),
        ('start: "\\q"', "has an escape that is not known"),
        ('start: "\\ud800"', "stands in no text"),
        ("start: /a/~20000", "up to 10000 times"),
        ("start: /a/~3..2", "up to 10000 times"),
        ('start: "a" | ' + "(" * 80 + '"a"' + ")" * 80, "nested more than 64 levels"),
        ("start: /\\x01/", "no text can be made"),
    ],
)
def test_faults_are_named(definition: str, error: str) -> None:
    with pytest.raises(RequestError, match=f"^here: .*{error}"):
        read_quoted({"syntax": "lark", "definition": definition}, "here")


@pytest.mark.parametrize("grammar", [{"syntax": "gbnf", "definition": "x"}, {"syntax": "lark", "definition": ""}])
def test_other_syntaxes_and_empty_grammars_are_refused(grammar: Mapping[str, str]) -> None:
    with pytest.raises(RequestError, match=r"^here: (syntax|definition) must be"):
        read_quoted(grammar, "here")
