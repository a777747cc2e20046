"""What is known of a step when it was computed."""

from __future__ import annotations

import pytest
from llm.scheduling.test_scheduler import make_scheduler, make_sequence, step

from seesay.llm.plans.step_plan import DraftCounts


@pytest.mark.parametrize(("tokens", "num_accepted"), [((5,), 0), ((7, 5), 1), ((7, 8, 5), 2)])
def test_proposed_tokens_are_counted(tokens: tuple[int, ...], num_accepted: int) -> None:
    """Those that were right, and all of them. The answer goes on behind the last right one."""
    seq = make_sequence(1, 9, max_new_tokens=20, ignore_eos=True)
    scheduler = make_scheduler([seq])
    step(scheduler)
    plan = scheduler.plan_step(None, {1: (7, 8)})
    [update] = scheduler.commit_step(plan, {1: tokens}, {1: DraftCounts(2, num_accepted)})
    scheduler.check_integrity()
    assert update.token_ids == tokens
    stats = scheduler.stats()
    assert (stats.total_draft_tokens, stats.total_accepted_tokens) == (2, num_accepted)
    assert (seq.num_drafted, seq.num_accepted) == (2, num_accepted)
    [row] = step(scheduler).rows
    assert (row.start, row.num_tokens) == (10 + num_accepted, 1)
