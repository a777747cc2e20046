"""Values at the ends of what fields of a request may be, and one beyond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seesay.config import GenerationConfig
from seesay.config.generation import UNLIMITED_TOKENS
from seesay.engine.front.request_limits import check_limits
from seesay.errors import RequestError
from seesay.values import GenerationRequest

REQUEST = GenerationRequest(prompt="hi", gen_config=GenerationConfig())
SESSION_LEN, VOCAB_SIZE = 3000, 500
LIMITS: list[tuple[str, Any, Any]] = [
    ("random_seed", -(1 << 63), (1 << 64) - 1),
    ("max_new_tokens", 0, SESSION_LEN),
    ("max_length", 1, (1 << 63) - 1),
    ("priority", -(1 << 63), (1 << 63) - 1),
    ("truncate_prompt_tokens", -1, (1 << 63) - 1),
]
OF_CONFIG = ("random_seed", "max_new_tokens")


def find_error(request: GenerationRequest, session_len: int = SESSION_LEN) -> RequestError | None:
    try:
        check_limits(request, session_len=session_len, vocab_size=VOCAB_SIZE)
    except RequestError as error:
        return error
    return None


def put(name: str, value: Any) -> GenerationRequest:
    """Return a request with a value, which a check of the configuration has not seen."""
    if name not in OF_CONFIG:
        return replace(REQUEST, **{name: value})
    config = GenerationConfig()
    object.__setattr__(config, name, value)
    return replace(REQUEST, gen_config=config)


@pytest.mark.parametrize(("name", "least", "most"), LIMITS)
def test_numbers_have_a_least_and_a_greatest_value(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert find_error(put(name, value)) is None, value
    for value in (least - 1, most + 1):
        error = find_error(put(name, value))
        assert error is not None and error.param == name, value
        assert f"{name} must be in [{least}, {most}]" in str(error)


def test_what_is_not_given_has_no_limit() -> None:
    assert find_error(REQUEST) is None
    assert find_error(put("max_new_tokens", UNLIMITED_TOKENS)) is None


def test_a_short_context_takes_the_default_length() -> None:
    default = GenerationConfig().max_new_tokens
    assert find_error(REQUEST, session_len=8) is None
    error = find_error(put("max_new_tokens", default + 1), session_len=8)
    assert error is not None and "the context has 8 tokens" in str(error)


def test_nothing_is_not_cut_off() -> None:
    error = find_error(replace(REQUEST, truncate_prompt_tokens=0))
    assert error is not None and "must be -1 or at least 1" in str(error)
    assert error.param == "truncate_prompt_tokens"


def test_salts_have_a_length_and_can_be_sent() -> None:
    assert find_error(replace(REQUEST, cache_salt="x" * 4096)) is None
    for salt in ("x" * 4097, "\ud800"):
        error = find_error(replace(REQUEST, cache_salt=salt))
        assert error is not None and error.param == "cache_salt"


def test_tokens_that_follow_are_of_the_vocabulary() -> None:
    assert find_error(replace(REQUEST, continuation=(0, VOCAB_SIZE - 1))) is None
    for token_ids in ((3, VOCAB_SIZE), (-1, 3)):
        error = find_error(replace(REQUEST, continuation=token_ids))
        assert error is not None and "the token ids of the vocabulary" in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "high"), ("streams", 1), ("enable_thinking", "no"), ("continuation", ("a",)), ("max_length", 1.5),
        ("chat_template", 3), ("cache_salt", None), ("kept_tokens", (1,)), ("wants_answer", None),
        ("template_options", []), ("reasoning_effort", 2), ("add_special_tokens", "yes"),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused_by_name(name: str, value: Any) -> None:
    error = find_error(replace(REQUEST, **{name: value}))
    assert error is not None and error.param == name and name in str(error)
