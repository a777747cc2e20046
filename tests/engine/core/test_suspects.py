from __future__ import annotations

import pytest

from seesay.engine.core.suspects import Suspects


def find(num_rows: int, bad: set[int]) -> tuple[list[int], int]:
    """Whom the halves of a step of `num_rows` rows blame, and how many steps that takes."""
    suspects, blamed, num_steps = Suspects(), list[int](), 0
    suspects.split(range(num_rows))
    while (group := suspects.group) is not None:
        num_steps += 1
        if not bad & group:
            suspects.pass_group()
        elif len(group) == 1:
            suspects.pass_group()
            blamed += group
        else:
            suspects.split(sorted(group))
    return blamed, num_steps


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 64, 500])
def test_the_row_that_fails_alone_is_found(num_rows: int) -> None:
    for bad in range(num_rows):
        blamed, num_steps = find(num_rows, {bad})
        assert blamed == [bad] and num_steps <= max(1, 2 * (num_rows - 1).bit_length())


def test_each_of_several_is_found() -> None:
    assert find(64, {3, 4, 60})[0] == [3, 4, 60]
    assert find(8, set(range(8)))[0] == list(range(8))
    assert find(8, set()) == ([], 2)


def test_nobody_is_suspected_at_first() -> None:
    suspects = Suspects()
    suspects.pass_group()
    assert not suspects.group
    suspects.split([4])
    assert suspects.group == frozenset({4}), "a step of one is tried again"
    suspects.clear()
    assert not suspects.group
