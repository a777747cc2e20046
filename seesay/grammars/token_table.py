"""The bytes that each token of a vocabulary adds to an answer: what grammars are compiled for.

Kept on the disk: making them takes half a second for 150,000 tokens.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from seesay.checkpoint.config_cache import keep, make_key, read_cached

_KEPT = "grammar-tokens-2"
"""The number counts the ways to make a table: raise it with a change."""


def load_token_table(digest: bytes, vocab_size: int, make: Callable[[], Sequence[bytes]]) -> list[bytes]:
    """Return the bytes of the tokens 0 … vocab_size - 1, as kept, or as `make` makes them. `digest` is the tokenizer's.
    A token that no grammar may choose has none; one that only its id may choose has bytes that are not UTF-8."""
    key = make_key(_KEPT, ["tokenizers"], [digest, str(vocab_size).encode()])
    kept = read_cached(key)
    if kept is not None:
        try:
            data = base64.b85decode(kept["data"])
            tokens = [data[start:stop] for start, stop in pairwise(accumulate(kept["lengths"], initial=0))]
            if len(tokens) == vocab_size:
                return tokens
        except (KeyError, TypeError, ValueError):  # a damaged file
            pass
    tokens = list(make())
    keep(key, {"data": base64.b85encode(b"".join(tokens)).decode(), "lengths": list(map(len, tokens))})
    return tokens
