from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seesay.llm.plans.token_runs import TokenRuns

layouts = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 5), min_size=0, max_size=3)), max_size=4)


def place(layout: list[tuple[int, list[int]]]) -> tuple[list[np.ndarray], dict[int, int], int]:
    """The slots of items of runs with one text token between them, after so many tokens of text; for each place of a
    run its last place; and the length of the prompt."""
    slots, last, length = [], dict[int, int](), 0
    for gap, runs in layout:
        length += gap
        own: list[int] = []
        for size in runs:
            own += range(length, length + size)
            last |= dict.fromkeys(range(length, length + size), length + size - 1)
            length += size + 1
        slots.append(np.array(own, dtype=np.int64))
    return slots, last, length + 3


@given(layout=layouts)
def test_tokens_of_a_run_see_its_end_and_others_themselves(layout: list[tuple[int, list[int]]]) -> None:
    slots, last, length = place(layout)
    runs = TokenRuns.of_media(slots)
    first = {place: min(other for other in last if last[other] == end) for place, end in last.items()}
    for start in range(length):
        expected = [[bound.get(place, place) for place in range(start, length)] for bound in (first, last)]
        assert runs.find(start, length).tolist() == expected


@given(layout=layouts)
def test_a_step_ends_at_an_edge(layout: list[tuple[int, list[int]]]) -> None:
    """It has as many tokens as were allowed, or fewer, up to a run; more only to the end of the run it begins in."""
    slots, last, length = place(layout)
    runs = TokenRuns.of_media(slots)
    for start in range(length):
        for wanted in range(1, length - start + 1):
            found = runs.fit(start, wanted)
            assert found >= 1
            whole = last.get(start + found - 1, -1) < start + found
            assert whole, "a run is cut"
            if found > wanted:
                assert last[start] == start + found - 1
            elif found < wanted:
                assert last[start + wanted - 1] >= start + wanted, "nothing would have been cut"
                assert last[start + found] == last[start + wanted - 1], "the run after the step is the one it would cut"
        assert runs.fit(start, 0) == 0 and runs.fit(start, -2) == -2


def test_neighbouring_items_are_two_runs() -> None:
    runs = TokenRuns.of_media([np.array([2, 3]), np.array([4, 5, 6])])
    assert runs.find(0, 8).tolist() == [[0, 1, 2, 2, 4, 4, 4, 7], [0, 1, 3, 3, 6, 6, 6, 7]]
    assert [runs.fit(0, n) for n in range(1, 9)] == [1, 2, 2, 4, 4, 4, 7, 8]


def test_a_prompt_is_one_run_and_its_answer_is_causal() -> None:
    runs = TokenRuns.of_prompt(4)
    assert runs.find(2, 7).tolist() == [[0, 0, 4, 5, 6], [3, 3, 4, 5, 6]]
    assert [runs.fit(0, n) for n in range(1, 7)] == [4, 4, 4, 4, 5, 6]
    assert (runs.fit(2, 1), runs.fit(4, 1)) == (2, 1)
