"""The calls of llguidance that compile, for the process that tries grammars and for the one that uses them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

os.environ.setdefault("RUST_LIB_BACKTRACE", "0")
"""Where RUST_BACKTRACE is set, llguidance collects a stack trace at each part of a schema that allows no value: schemas
of closed objects take twice the time."""
MAX_LEXER_STATES = 50_000
"""Of one answer: half of them are 32 MiB, and take a quarter of a second."""
LEXER_FUEL = 3_000_000
"""What the lexer of a grammar may spend on finding out whether a text can still end, in parts of expressions: 0.1 s.
With less, it forbids texts that match a pattern beside a large `maxLength`."""
MAX_ROW_ITEMS = 20_000
"""Most ways to go on that a grammar has behind one text: an object has four for each optional property."""
_MAX_WORDS = 8
"""Of a mask, that are looked at to find a choice of characters."""
_MAX_FORCED_BYTES = 4096
"""Of a longer forced text the beginning is cut into tokens."""
_MAX_CUT_TEXTS, _MAX_CUT_CHARS = 4096, 256
"""Forced texts whose tokens are kept, as a schema's come again with each item and each answer; longer ones are not."""
NO_FORCING = '%llguidance {"no_forcing": true}\n'
UNSATISFIABLE = "it allows no value: "
TOO_AMBIGUOUS = "the grammar takes too much for one token, make it less ambiguous"
NO_BEGINNING = "no token of this model can begin an answer that it allows"


class TokenTable:
    """The tokens of a model, as llguidance reads them. A last one, `len(tokens)`, stands for the end of an answer.

    encode: return the token ids of a text without special tokens around it.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], encode: Callable[[str], Sequence[int]] | None = None) -> None:
        """tokens: the bytes of each token; none, or some that begin with 0xFF, for those that stand in no text (see
        `token_table`). Without `encode` no text is forced."""
        from llguidance import LLTokenizer

        self.tokens = [*tokens, b"\xff<end of the answer>"]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [self.eos_token_id]
        self._encode = encode
        self._cut_again = lru_cache(_MAX_CUT_TEXTS)(self._cut)
        self._characters = _find_characters(self.tokens)
        self.tokenizer = LLTokenizer(self)

    def leaves_choice(self, words: npt.NDArray[np.int32]) -> bool:
        """Whether a mask allows two characters that a text may go on with, so that none is forced. It looks at a few
        words of it alone, and finds a choice in most places where there is one."""
        is_one_allowed = False
        for place, bits in self._characters:
            allowed = words.item(place) & bits
            if allowed & (allowed - 1) or (allowed and is_one_allowed):
                return True
            is_one_allowed |= allowed != 0
        return False

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text as the model's tokenizer cuts it: of its beginning where it is long."""
        if isinstance(text, bytes):
            text = text.decode()
        text = text[:_MAX_FORCED_BYTES]
        if self._encode is None:
            found: Sequence[int] = ()
        else:
            found = self._cut_again(text) if len(text) <= _MAX_CUT_CHARS else self._cut(text)
        return list(found) or list(self.tokenizer.greedy_tokenize(text))

    def _cut(self, text: str) -> Sequence[int]:
        """Some tokenizers put a space before each text. That is seen where it is a token of its own, so another text
        may stand before. Returns nothing where the tokenizer changes the text."""
        assert self._encode is not None
        data = text.encode()
        for lead in ("", "\n"):
            token_ids = self._encode(lead + text)
            left = len(data)
            start = len(token_ids)
            while left > 0 and start > 0:
                start -= 1
                left -= len(self._spell(token_ids[start])) or left + 1
            found = tuple(token_ids[start:])
            if left == 0 and b"".join(map(self._spell, found)) == data:
                return found
        return ()

    def _spell(self, token_id: int) -> bytes:
        return self.tokens[token_id] if token_id < len(self.tokens) else b""


def _find_characters(tokens: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return tokens of one ASCII character each, none of them twice, as words of a mask: their places, and bits."""
    found = dict[bytes, int]()
    for token_id, token in enumerate(tokens):
        if len(token) == 1 and token.isascii():
            found.setdefault(token, token_id)
    bits = Counter[int]()
    for token_id in found.values():
        bits[token_id // 32] |= 1 << token_id % 32
    return sorted(bits.items(), key=lambda word: -word[1].bit_count())[:_MAX_WORDS]


def compile_program(table: TokenTable, source: str, *, forces: bool = True) -> Any:
    """Return a matcher at the beginning of a program's answers, to be copied (`deep_copy`). forces: where it leaves no
    choice about the text, it leaves none about the tokens. Raises ValueError for a program with a fault."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_items_in_row=MAX_ROW_ITEMS,
        initial_lexer_fuel=LEXER_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )
    grammar = LLMatcher.grammar_from_lark(source if forces else NO_FORCING + source)
    matcher = LLMatcher(table.tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(explain(matcher.get_error()))
    return matcher


def explain(text: str) -> str:
    """Return what llguidance said, without its own names of places and the lines of the grammar that follow."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or ["it is not valid"]
    first = lines[0].replace("failed to compile JSON schema: ", "").replace("Unsatisfiable schema: ", UNSATISFIABLE)
    if "regex parse error" in first:
        why = next((line for line in lines if line.startswith("error: ")), "").removeprefix("error: ")
        return f"{lines[1]} is no regular expression that is known: {why}"[:400] if why else first
    return first[:400]


def find_fault(table: TokenTable, matcher: Any) -> str:
    """Return what is wrong with a compiled program whose answers cannot begin, or ''."""
    beginning = matcher.deep_copy()
    is_complete = beginning.is_accepting()
    mask = bytearray(beginning.compute_bitmask())
    if beginning.is_error() and "NoExtension" not in beginning.get_error():
        return explain(beginning.get_error())
    mask[table.eos_token_id // 8] &= ~(1 << table.eos_token_id % 8)
    if beginning.is_error() or not any(mask):
        return "" if is_complete else NO_BEGINNING
    place = next(place for place, bits in enumerate(mask) if bits)
    if beginning.consume_token(8 * place + (mask[place] & -mask[place]).bit_length() - 1):
        return ""
    return f"{TOO_AMBIGUOUS}: {explain(beginning.get_error())}"
