"""What a step has room for while it is planned."""

from __future__ import annotations

import pytest

from seesay.llm.scheduling.fair_shares import TokenShares
from seesay.llm.scheduling.open_step import OpenStep


@pytest.mark.parametrize(
    ("spare", "extra", "room"), [(7, 5, 8), (4, 5, 5), (3, 5, 5), (0, 5, 5), (7, 0, 3), (4, 0, 0), (2, 0, 0)]
)
def test_proposed_tokens_take_what_is_extra_and_leave_what_is_kept(spare: int, extra: int, room: int) -> None:
    step = OpenStep(singles=0, spare=spare, shares=TokenShares(), extra=extra, kept=4)
    assert step.room_for_proposed == room
    step.spend_proposed(room)
    assert step.room_for_proposed == 0 and step.extra == 0
    assert step.spare == spare - (room - extra)


def test_what_is_extra_is_taken_first() -> None:
    step = OpenStep(singles=0, spare=7, shares=TokenShares(), extra=5, kept=4)
    step.spend_proposed(2)
    assert (step.extra, step.spare) == (3, 7)
    step.spend_proposed(5)
    assert (step.extra, step.spare) == (0, 5)


def test_a_new_step_has_room_for_nothing_that_is_proposed() -> None:
    step = OpenStep(singles=3, spare=1, shares=TokenShares(), kept=1)
    assert step.room_for_proposed == 0 and step.promised == 0
