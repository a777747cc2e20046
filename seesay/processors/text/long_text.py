"""Tokenizing texts of any length without holding the GIL, and without tokenizing much more than is allowed."""

from __future__ import annotations

import tokenizers

_SHORT_CHARS = 1 << 12
"""A text of so many characters is tokenized within about 4 ms. `tokenizers` releases the GIL for batches alone."""
_SLICE_CHARS = 1 << 14
_SLACK_TOKENS = 64
"""A slice cut out of a text may have so many more tokens than its part of the text."""


def encode_text(backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = False) -> tokenizers.Encoding:
    """Tokenize `text`."""
    if len(text) <= _SHORT_CHARS:
        return backend.encode(text, add_special_tokens=add_special_tokens)
    return backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]


def decode_ids(backend: tokenizers.Tokenizer, ids: list[int], *, skip_special_tokens: bool) -> str:
    """Return the text of `ids`."""
    text: str
    if len(ids) <= _SHORT_CHARS:
        text = backend.decode(ids, skip_special_tokens=skip_special_tokens)
    else:
        (text,) = backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)
    return text


def has_more_tokens(backend: tokenizers.Tokenizer, text: str, max_tokens: int) -> bool:
    """Return whether `text` is certain to have more than `max_tokens` tokens.

    Time and memory are bounded by `max_tokens`, not by the text. A text that has only a few more may pass.
    """
    if len(text) <= max_tokens:
        return False
    num_tokens = 0
    for start in range(0, len(text), _SLICE_CHARS):
        (encoding,) = backend.encode_batch_fast([text[start : start + _SLICE_CHARS]], add_special_tokens=False)
        num_tokens += max(0, len(encoding) - _SLACK_TOKENS)
        if num_tokens > max_tokens:
            return True
    return False
