"""Prompts of one call: each is built once for all of its requests, and they are a group."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from seesay.config import GenerationConfig
from seesay.engine.front.shared_prompts import SharedPrompts, group_by_prompt
from seesay.values import GenerationRequest

REQUEST = GenerationRequest(prompt=(1, 2, 3), gen_config=GenerationConfig())
SAME: Any = [
    {"priority": 4}, {"streams": False}, {"max_length": 9}, {"continuation": (5,)},
    {"gen_config": GenerationConfig(max_new_tokens=3, temperature=0.5)}, {"kept_tokens": ("a",)},
]  # fmt: skip
OTHERS: Any = [
    {"prompt": "hi"}, {"template_options": {"a": 1}}, {"wants_answer": False}, {"pooling": "last"},
    {"owner": "me"}, {"cache_salt": "x"}, {"adapter_name": "a"}, {"chat_template": "{{ 1 }}"},
    {"add_special_tokens": False}, {"truncate_prompt_tokens": 3}, {"truncate_prompt_tokens": -1},
    {"enable_thinking": True}, {"reasoning_effort": "low"},
]  # fmt: skip


class Builder:
    """Makes a new prompt at each call."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> Any:
        self.num_calls += 1
        return object()


@pytest.mark.parametrize("changes", SAME)
def test_requests_for_one_prompt_share_what_is_built_and_are_a_group(changes: dict[str, Any]) -> None:
    other = replace(REQUEST, **changes)
    prompts, build = SharedPrompts([REQUEST, other]), Builder()
    assert prompts.get(REQUEST, build) is prompts.get(other, build) and build.num_calls == 1
    assert (prompts.group_of(7, REQUEST), prompts.group_of(8, other)) == (7, 7)
    assert prompts.group_ids == [7]


@pytest.mark.parametrize("changes", OTHERS)
def test_prompts_that_are_prepared_otherwise_are_others(changes: dict[str, Any]) -> None:
    other = replace(REQUEST, **changes)
    prompts, build = SharedPrompts([REQUEST, other, REQUEST, other]), Builder()
    assert prompts.get(REQUEST, build) is not prompts.get(other, build) and build.num_calls == 2
    assert (prompts.group_of(1, REQUEST), prompts.group_of(2, other)) == (1, 2)
    assert prompts.group_ids == [1, 2]
    assert group_by_prompt([(1, REQUEST), (2, other), (3, REQUEST)]) == [{1: REQUEST, 3: REQUEST}, {2: other}]


def test_room_for_the_answer_counts_where_the_prompt_is_cut_to_it() -> None:
    cut = replace(REQUEST, truncate_prompt_tokens=-1)
    shorter = replace(cut, gen_config=GenerationConfig(max_new_tokens=5))
    assert len(group_by_prompt([(1, cut), (2, shorter)])) == 2


def test_a_prompt_of_one_request_is_not_kept() -> None:
    prompts, build = SharedPrompts([REQUEST, replace(REQUEST, owner="me")]), Builder()
    assert prompts.get(REQUEST, build) is not prompts.get(REQUEST, build)
    assert prompts.group_of(1, REQUEST) is None and prompts.group_ids == []


def test_blocks_that_stay_make_a_group_of_one() -> None:
    prompts, build = SharedPrompts([REQUEST], keeps_blocks=True), Builder()
    assert prompts.get(REQUEST, build) is prompts.get(REQUEST, build)
    assert prompts.group_of(4, REQUEST) == 4 and prompts.keeps_blocks


def test_what_cannot_be_built_fails_for_all_and_is_not_built_again() -> None:
    prompts = SharedPrompts([REQUEST, REQUEST])
    calls = []

    def fail() -> Any:
        calls.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            prompts.get(REQUEST, fail)
    assert len(calls) == 1


def test_threads_that_come_meanwhile_wait_for_the_first() -> None:
    prompts, build = SharedPrompts([REQUEST] * 9), Builder()
    begun, may_go_on = threading.Event(), threading.Event()

    def build_slowly() -> Any:
        begun.set()
        assert may_go_on.wait(60)
        return build()

    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(prompts.get, REQUEST, build_slowly)
        assert begun.wait(60)
        others = [threads.submit(prompts.get, REQUEST, build_slowly) for _ in range(8)]
        assert not any(each.done() for each in others)
        may_go_on.set()
        assert {id(each.result(60)) for each in (first, *others)} == {id(first.result())}
    assert build.num_calls == 1
