"""How long a prompt may be, at the ends and one beyond."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import seesay.demo
from seesay.config import GenerationConfig
from seesay.config.generation import UNLIMITED_TOKENS
from seesay.engine.front.prompt_lengths import PromptLengths
from seesay.errors import ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import GenerationRequest

LENGTHS = PromptLengths(session_len=100, max_run=30)


def make_request(truncate: int, max_new_tokens: int = 10) -> GenerationRequest:
    config = GenerationConfig(max_new_tokens=max_new_tokens)
    return GenerationRequest(prompt="hi", gen_config=config, truncate_prompt_tokens=truncate)


def test_a_prompt_that_is_cut_leaves_room_for_its_answer() -> None:
    assert LENGTHS.find_room(make_request(7)) == 7
    assert LENGTHS.find_room(make_request(1)) == 1
    assert LENGTHS.find_room(make_request(-1)) == 90
    assert LENGTHS.find_room(make_request(-1, 99)) == 1
    assert LENGTHS.find_room(make_request(-1, 100)) == 99, "an answer that has no room anyway"
    assert LENGTHS.find_room(make_request(-1, UNLIMITED_TOKENS)) == 99
    assert LENGTHS.find_room(replace(make_request(-1), wants_answer=False)) == 100
    assert LENGTHS.find_room(replace(make_request(-1), pooling="last")) == 100


def test_tokens_that_see_all_others_have_a_limit_of_their_own() -> None:
    LENGTHS.check_run(30)
    with pytest.raises(RequestError):
        LENGTHS.check_run(31)
    PromptLengths(session_len=100, max_run=None).check_run(10**9)


@pytest.mark.parametrize("max_tokens", [10, 1 << 17])
def test_characters_and_parts_of_a_conversation(max_tokens: int) -> None:
    num_chars, num_parts = max(1 << 20, 64 * max_tokens), max(4096, max_tokens)
    LENGTHS.check_size(["a" * num_chars], max_tokens)
    LENGTHS.check_size([""] * num_parts, max_tokens)
    for texts, words in (
        (["a" * num_chars, "a"], f"{num_chars + 1} characters; at most {num_chars}"),
        ([""] * (num_parts + 1), f"{num_parts + 1} messages and parts; at most {num_parts}"),
    ):
        with pytest.raises(RequestError) as caught:
            LENGTHS.check_size(texts, max_tokens)
        assert words in str(caught.value) and "100 (session_len)" in str(caught.value)
        assert (caught.value.code, caught.value.param) == (ErrorCode.CONTEXT_TOO_LONG, "messages")


def test_a_text_with_many_more_tokens_than_are_taken() -> None:
    tokenizer = Tokenizer.load(Path(seesay.demo.__file__).with_name("checkpoint"))
    LENGTHS.check_text(" a" * 100, 50, tokenizer)
    with pytest.raises(RequestError) as caught:
        LENGTHS.check_text(" a" * 5000, 50, tokenizer)
    assert "10000 characters, which are more than 50 tokens" in str(caught.value)


def test_token_ids_of_a_prompt_that_is_counted_or_cut() -> None:
    LENGTHS.check_ids(99, 100, wants_answer=True)
    LENGTHS.check_ids(100, 100, wants_answer=False)
    LENGTHS.check_ids(400, 400, wants_answer=True)
    for num_tokens, max_tokens, words in (
        (100, 100, "the prompt has 100 tokens, but prompt and answer together may have 100 (session_len)"),
        (401, 400, "401 token ids; at most 400 are taken; prompt and answer together may have 100 (session_len)"),
    ):
        with pytest.raises(RequestError) as caught:
            LENGTHS.check_ids(num_tokens, max_tokens, wants_answer=True)
        assert words in str(caught.value) and caught.value.code is ErrorCode.CONTEXT_TOO_LONG


def test_what_is_only_counted_may_be_longer() -> None:
    assert LENGTHS.counted == 400
