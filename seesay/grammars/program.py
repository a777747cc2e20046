"""A grammar in the form that is compiled, after its parts were checked."""

from __future__ import annotations

import json
import re

from seesay.config.grammar import Grammar
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.ebnf import read_ebnf
from seesay.grammars.lark import write_rules
from seesay.grammars.regex import escape_text, rewrite_regex
from seesay.grammars.schemas.json_program import write_json
from seesay.grammars.structural_tag import write_tag

_LARK = re.compile(r"(?m)^\s*(%llguidance\b|[?!]*start(\[[^\]]*\])?\s*:(?!:))")
"""Found in grammars in Lark's form, and never in EBNF."""


def make_program(grammar: Grammar) -> Grammar:
    """Return `grammar` in the form that is compiled, of the kind 'lark'. Raises `RequestError` that names what is not
    supported."""
    if grammar.kind == "json_schema":
        written, left_out = write_json(grammar.source, is_open=grammar.is_open, is_lenient=grammar.is_open)
        source = f"start: {written}"
    elif grammar.kind == "structural_tag":
        root, lines, left_out = write_tag(json.loads(grammar.source))
        source = "\n".join([f"start: {root}", *lines])
    else:
        source, left_out = _write(grammar), ()
    _check_text(grammar.kind, source)
    return Grammar(kind="lark", source=source, left_out=left_out)


def _check_text(kind: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        why = f"the {kind} has the lone surrogate U+{ord(text[error.start]):04X}, which stands in no text"
        raise RequestError(ErrorCode.INVALID_REQUEST, f"response_format: {why}", "response_format") from None


def _write(grammar: Grammar) -> str:
    if grammar.kind == "regex":
        written = rewrite_regex(grammar.source, "response_format: the regular expression")
        return f"start: /{written}/" if written else 'start: ""'
    if grammar.kind == "choice":
        texts = list(dict.fromkeys(json.loads(grammar.source)))
        _check_text(grammar.kind, "".join(texts))
        return f"start: T\nT: {' | '.join(f'/{escape_text(text)}/' for text in texts)}"
    if _LARK.search(grammar.source):
        return grammar.source
    assert grammar.kind == "ebnf", grammar.kind
    root, lines = write_rules(read_ebnf(grammar.source, "response_format"), "e")
    return "\n".join([f"start: {root}", *lines])
