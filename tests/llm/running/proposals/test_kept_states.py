"""Hidden states that are kept by position, against a dict."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
import torch

from seesay.llm.plans.step_plan import Row
from seesay.llm.running.proposals.kept_states import KeptStates


class Step:
    """A step of one sequence."""

    def __init__(self, start: int, count: int) -> None:
        self.rows = (Row(0, start, count, True),)


@pytest.mark.parametrize("seed", range(20))
def test_each_position_has_its_last_state(seed: int) -> None:
    rng, kept, known = random.Random(seed), KeptStates(1 << 20), dict[int, torch.Tensor]()
    kept.begin(0)
    start = 0
    for _ in range(30):
        first, count = start + rng.randrange(4), rng.randrange(1, 6)
        states = torch.randn(count, 2)
        kept.keep(cast(Any, Step(first, count)), states.clone())
        known |= dict(enumerate(states, first))
        if rng.random() < 0.5:
            stop = start + rng.randrange(1, 8)
            found = kept.take(0, start, stop)
            expected = [known.get(place, torch.zeros(2)) for place in range(start, stop)]
            if found is None:
                assert not any(place in known for place in range(start, stop))
            else:
                torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=0)
            start = stop
            known = {place: state for place, state in known.items() if place >= stop}


def test_what_one_step_made_is_not_copied() -> None:
    kept, states = KeptStates(1 << 20), torch.randn(5, 3)
    kept.begin(0)
    kept.keep(cast(Any, Step(10, 5)), states)
    found = kept.take(0, 11, 14)
    assert found is not None and found.data_ptr() == states[1:].data_ptr()
