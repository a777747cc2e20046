"""What a lenient schema of a request does not hold, for the header of its answer."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from seesay.config.grammar import read_grammar
from seesay.errors import RequestError
from seesay.grammars.program import make_program

if TYPE_CHECKING:
    from starlette.requests import Request

HEADER = "x-seesay-schema-left-out"

_MAX_NAMED = 16
_PLAIN = re.compile(r"[^A-Za-z0-9_.\[\] /#$-]")


def note_left_out(http: Request, answer_format: Mapping[str, object] | None, of_tools: tuple[str, ...] = ()) -> None:
    """Note what a `response_format` with `strict: false` leaves out, and what the schemas of tools do, so that the
    answer's header says it."""
    if left_out := (*_find_left_out(answer_format), *of_tools):
        http.scope["state"]["schema_left_out"] = left_out


def _find_left_out(answer_format: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return what a format leaves out. A schema that is refused is left to those who compile it."""
    grammar = read_grammar(answer_format)
    if grammar is None or not grammar.is_open or importlib.util.find_spec("llguidance") is None:
        return ()
    try:
        return make_program(grammar).left_out
    except RequestError:
        return ()


def show_left_out(left_out: tuple[str, ...]) -> str:
    """Return the value of the header: keywords and their places. These may hold any characters."""
    shown = [_PLAIN.sub("?", each[:120]) for each in left_out[:_MAX_NAMED]]
    more = f" and {len(left_out) - _MAX_NAMED} more" if len(left_out) > _MAX_NAMED else ""
    return f"{', '.join(shown)}{more}"
