from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from seesay.demo import CHECKPOINT
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


@contextmanager
def counting_turns(turns: list[None]) -> Iterator[None]:
    """Append an entry each time that another thread gets the GIL."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(0.0005):
            turns.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


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
    assert not tokenizer.has_more_tokens(text, num_tokens)
    assert tokenizer.has_more_tokens(text, num_tokens // 3)


def test_the_gil_is_free_while_a_long_text_is_tokenized(tokenizer: Tokenizer) -> None:
    """In one call that holds the GIL another thread gets two turns, at its beginning and at its end."""
    text = "how many red circles are there? " * 30_000
    turns: list[None] = []
    with counting_turns(turns):
        tokenizer.has_more_tokens(text, 10 * len(text) // 32)
    assert len(turns) >= 8


def test_a_text_that_is_too_long_takes_little_memory(tokenizer: Tokenizer) -> None:
    text = "how many? " * 1_000_000
    tracemalloc.start()
    try:
        assert tokenizer.has_more_tokens(text, 4096)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
