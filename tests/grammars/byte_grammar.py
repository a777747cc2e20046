"""A vocabulary of single bytes, for which grammars are compiled in a millisecond and every text can be written."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np

from seesay.config.grammar import Grammar
from seesay.grammars.compile import compile_program, make_compiler
from seesay.grammars.program import make_program

END = 256


@cache
def compiler() -> Any:
    return make_compiler([*(bytes([i]) for i in range(256)), b""], num_threads=1)


def compile_grammar(grammar: Grammar) -> Any:
    program = make_program(grammar)
    return compile_program(compiler(), program.kind, program.source)


def compile_schema(schema: Any, *, is_open: bool = False) -> Any:
    return compile_grammar(Grammar(kind="json_schema", source=json.dumps(schema), is_open=is_open))


def accepts(compiled: Any, text: str) -> bool:
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=[END])
    return bool(matcher.accept_string(text)) and bool(matcher.is_completed())


def list_allowed(bits: np.ndarray[Any, np.dtype[np.int32]], num_tokens: int) -> list[int]:
    """Return the token ids whose bits are set in a mask [1, words], in order."""
    found: list[int] = np.unpackbits(bits[0].view(np.uint8), bitorder="little")[:num_tokens].nonzero()[0].tolist()
    return found


def walk(compiled: Any, rng: random.Random, *, max_bytes: int = 400) -> str | None:
    """A random text that the grammar allows; None where it did not end."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=[END])
    bits = np.zeros((1, 9), dtype=np.int32)
    data = bytearray()
    while len(data) < max_bytes:
        if not matcher.fill_next_token_bitmask(bits, 0):
            bits[:] = -1
        allowed = list_allowed(bits, 257)
        assert allowed, (bytes(data), "nothing is allowed")
        # Quotes, escapes and digits come often enough for a text to end and to be odd.
        likely = [i for i in allowed if i == END or i in b'\\"u0123456789abcdefx,:{}[].-T~']
        token = rng.choice(likely if likely and rng.random() < 0.8 else allowed)
        if token == END:
            return data.decode("utf-8", "replace")  # as tokens become text
        assert matcher.accept_token(token)
        data.append(token)
    return None
