"""A vocabulary of single bytes, for which grammars are compiled in a millisecond and every text can be written."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np

from seesay.config.grammar import Grammar
from seesay.grammars.compile import TokenTable, compile_program
from seesay.grammars.program import make_program

END = 256


@cache
def byte_table() -> TokenTable:
    return TokenTable([bytes([i]) for i in range(256)])


def compile_grammar(grammar: Grammar) -> Any:
    return compile_program(byte_table(), make_program(grammar).source, forces=False)


def compile_schema(schema: Any, *, is_open: bool = False) -> Any:
    return compile_grammar(Grammar(kind="json_schema", source=json.dumps(schema), is_open=is_open))


def accepts(compiled: Any, text: str | bytes) -> bool:
    matcher, data = compiled.deep_copy(), text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return matcher.try_consume_tokens(list(data)) == len(data) and bool(matcher.is_accepting())


def allowed_tokens(matcher: Any, num_tokens: int) -> list[int]:
    """Return the token ids that a matcher allows next; the last one is the end."""
    words = np.frombuffer(matcher.compute_bitmask(), np.int32)
    assert not matcher.is_error(), matcher.get_error()
    return list_allowed(words[None], num_tokens)


def list_allowed(bits: np.ndarray[Any, np.dtype[np.int32]], num_tokens: int) -> list[int]:
    """Return the token ids whose bits are set in a mask [1, words], in order."""
    found: list[int] = np.unpackbits(bits[0].view(np.uint8), bitorder="little")[:num_tokens].nonzero()[0].tolist()
    return found


def walk(compiled: Any, rng: random.Random, *, max_bytes: int = 400) -> str | None:
    """A random text that the grammar allows; None where it did not end."""
    matcher = compiled.deep_copy()
    data = bytearray()
    while len(data) < max_bytes:
        allowed = allowed_tokens(matcher, END + 1)
        assert allowed, (bytes(data), "nothing is allowed")
        # Quotes, escapes and digits come often enough for a text to end and to be odd.
        likely = [i for i in allowed if i == END or i in b'\\"u0123456789abcdefx,:{}[].-T~']
        token = rng.choice(likely if likely and rng.random() < 0.8 else allowed)
        if token == END:
            return data.decode("utf-8", "replace")  # as tokens become text
        assert matcher.consume_token(token)
        data.append(token)
    return None
