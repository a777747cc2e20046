"""JSON Schemas as a part of llguidance's grammars."""

from __future__ import annotations

import json

import msgspec

from seesay.grammars.schemas.json_schema import rewrite_schema

_STYLE = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
"""JSON is written in one line, with a space behind commas and colons: where any space is allowed, models may write
nothing else until their answer is cut. With `\\u` an additional property could spell the name of another one."""


def write_json(
    source: str, *, is_open: bool = False, is_lenient: bool = False, tries_patterns: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return (the expression for JSON that matches a schema, what it does not hold). See `rewrite_schema`."""
    written, left_out = rewrite_schema(source, is_open=is_open, is_lenient=is_lenient, tries_patterns=tries_patterns)
    whole = {**(written if isinstance(written, dict) else {}), "x-guidance": _STYLE}  # the last: it is swapped out
    try:
        text = msgspec.json.encode(whole).decode()
    except UnicodeEncodeError:  # of half a surrogate pair, for which it is refused
        text = json.dumps(whole, ensure_ascii=False)
    return f"%json {text}", left_out
