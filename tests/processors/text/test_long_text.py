from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from seesay.demo import CHECKPOINT
from seesay.processors.text.long_text import encode_text, has_more_tokens
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import RenderedPrompt

TEXTS = {
    "words": "how many red circles are there? " * 3000,
    "one word": "a" * 50_000,
    "other letters": "圆形 и круг 😀 " * 4000,
    "blanks": " " * 60_000,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(CHECKPOINT)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_long_text_has_the_same_tokens(tokenizer: Tokenizer, text: str) -> None:
    expected = tokenizer.backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == expected
    ids, _ = tokenizer.encode_prompt(RenderedPrompt(text=text))
    assert ids.tolist() == expected
    assert tokenizer.decode(expected) == tokenizer.backend.decode(expected)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_just_short_enough_always_passes(tokenizer: Tokenizer, text: str) -> None:
    num_tokens = len(tokenizer.encode(text))
    assert not has_more_tokens(tokenizer.backend, text, num_tokens)
    assert has_more_tokens(tokenizer.backend, text, num_tokens // 3)


class Watched:
    """A backend whose calls are noted: what they are, and how many characters they read."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.calls: list[tuple[str, int]] = []

    def encode(self, text: str, **options: Any) -> Any:
        self.calls.append(("encode", len(text)))
        return self._backend.encode(text, **options)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.calls += [("encode_batch", len(text)) for text in texts]
        return self._backend.encode_batch(texts, **options)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.calls += [("encode_batch_fast", len(text)) for text in texts]
        return self._backend.encode_batch_fast(texts, **options)


def test_the_gil_is_free_while_a_long_text_is_tokenized(tokenizer: Tokenizer) -> None:
    """`tokenizers` releases it in calls for batches alone. What is counted first is read in slices."""
    text = "how many red circles are there? " * 30_000
    watched: Any = Watched(tokenizer.backend)
    assert not has_more_tokens(watched, text, 10 * len(text) // 32)
    names, sizes = zip(*watched.calls)
    assert set(names) == {"encode_batch_fast"} and max(sizes) <= 1 << 14 and sum(sizes) == len(text)
    watched.calls.clear()
    encode_text(watched, text)
    encode_text(watched, "how many?")
    assert watched.calls == [("encode_batch", len(text)), ("encode", 9)]


def test_a_text_that_is_too_long_takes_little_memory(tokenizer: Tokenizer) -> None:
    text = "how many? " * 1_000_000
    tracemalloc.start()
    try:
        assert has_more_tokens(tokenizer.backend, text, 4096)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
