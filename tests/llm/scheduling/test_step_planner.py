"""Which tokens the rows of a step have."""

from __future__ import annotations

import pytest
from llm.scheduling.test_scheduler import make_scheduler, make_sequence, rows, step


@pytest.mark.parametrize(("proposed", "num_tokens"), [((), 1), ((7,), 2), ((7, 8, 9), 4), ((7,) * 40, 10)])
def test_proposed_tokens_are_computed_with_the_last_one_of_an_answer(
    proposed: tuple[int, ...], num_tokens: int
) -> None:
    """As many as the answer may still have."""
    scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=11, ignore_eos=True)])
    step(scheduler)
    plan = scheduler.plan_step(None, {1: proposed})
    assert rows(plan) == [(1, 9, num_tokens)]


def test_nothing_is_proposed_for_a_prompt() -> None:
    scheduler = make_scheduler([make_sequence(1, 9)])
    assert rows(scheduler.plan_step(None, {1: (7, 8)})) == [(1, 0, 9)]
