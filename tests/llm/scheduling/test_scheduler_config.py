"""Limits of a scheduler, and who is told that a prompt exceeds them."""

from __future__ import annotations

import pytest

from seesay.errors import ErrorCode, RequestError
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import (
    SchedulerConfig,
    check_prompt_length,
    check_run_length,
    find_max_step_tokens,
    find_misfit,
)


def test_what_a_model_does_not_have_is_off() -> None:
    config = SchedulerConfig(max_batch_size=1, max_prefill_token_num=1, session_len=1)
    assert (config.num_adapter_slots, config.media_run, config.num_micro_batches) == (0, 0, 1)
    assert config.max_encode_ahead_tokens == 32768 and config.length_scaling is None
    assert not config.attends_media and not config.is_prefix_lm
    assert config.max_streamed_tokens is None and config.max_encoding_tokens is None


@pytest.mark.parametrize(
    "name", ["max_batch_size", "max_prefill_token_num", "session_len", "max_encode_ahead_tokens", "max_streamed_tokens"]
)
def test_nothing_is_computed_with_a_limit_of_0(name: str) -> None:
    limits = {"max_batch_size": 1, "max_prefill_token_num": 1, "session_len": 1}
    SchedulerConfig(**{**limits, name: 1})  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        SchedulerConfig(**{**limits, name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("media_run", "is_prefix_lm", "session_len", "most"),
    [(0, False, 99, 8), (1, False, 99, 8), (5, False, 99, 12), (0, True, 99, 15), (0, True, 6, 13)],
)
def test_a_step_takes_all_of_a_run_for_which_it_has_one_token(
    media_run: int, is_prefix_lm: bool, session_len: int, most: int
) -> None:
    assert find_max_step_tokens(8, session_len=session_len, media_run=media_run, is_prefix_lm=is_prefix_lm) == most


def test_a_prompt_leaves_room_for_its_answer() -> None:
    check_prompt_length(9, 10, wants_answer=True)
    check_prompt_length(10, 10, wants_answer=False)
    with pytest.raises(RequestError, match=r"has 10 tokens, but prompt and answer together may have 10") as raised:
        check_prompt_length(10, 10, wants_answer=True)
    assert (raised.value.code, raised.value.param) == (ErrorCode.CONTEXT_TOO_LONG, "messages")
    with pytest.raises(RequestError, match=r"has 11 tokens, but it may have 10"):
        check_prompt_length(11, 10, wants_answer=False)


def test_tokens_that_see_each_other_fit_into_a_step() -> None:
    check_run_length(10, 10)
    with pytest.raises(RequestError, match=r"has 11 tokens, but a step takes 10") as raised:
        check_run_length(11, 10)
    assert (raised.value.code, raised.value.param) == (ErrorCode.CONTEXT_TOO_LONG, "messages")


def test_a_sequence_fits_into_the_cache() -> None:
    pool = BlockPool(3, 4)
    assert find_misfit(12, pool) is None
    error = find_misfit(13, pool)
    assert error is not None and error.code is ErrorCode.OUT_OF_MEMORY
    assert error.message.startswith("13 tokens need 4 KV blocks of 4 tokens, but the cache has 3")
