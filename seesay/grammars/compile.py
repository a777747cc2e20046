"""The calls of xgrammar that compile, for the process that tries grammars and for the one that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def make_compiler(tokens: Sequence[bytes], *, num_threads: int) -> Any:
    """Return a compiler for a vocabulary, which keeps nothing. Imports xgrammar."""
    import xgrammar

    info = xgrammar.TokenizerInfo(
        list(tokens), xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[len(tokens) - 1]
    )
    return xgrammar.GrammarCompiler(info, max_threads=num_threads, cache_enabled=False)


def compile_program(compiler: Any, kind: str, source: str) -> Any:
    """Return xgrammar's compiled form of a program. Raises what xgrammar raises for one with a fault.

    JSON is written in one line, with a space behind commas and colons: where any space is allowed, models may write
    nothing else until their answer is cut.
    """
    if kind == "json_schema":
        return compiler.compile_json_schema(source, any_whitespace=False)
    if kind == "regex":
        return compiler.compile_regex(source)
    if kind == "structural_tag":
        return compiler.compile_structural_tag(source)
    assert kind == "ebnf", kind
    return compiler.compile_grammar(source)


def explain_no_beginning(compiled: Any) -> str:
    """Return what is wrong with a compiled program of which no token of the vocabulary can be the first, or ''."""
    import xgrammar

    bits = np.full((1, -(-compiled.tokenizer_info.vocab_size // 32)), -1, dtype=np.int32)
    xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(bits, 0)
    return "" if bits.any() else "no token of this model can begin an answer that it allows"
