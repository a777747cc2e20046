from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pairs import MANY_CASES, every_pair, leaves_out_slow, mark_sweep, parametrize_sweep, split_sweeps


def test_any_two_values_meet_in_few_combinations() -> None:
    axes = [range(3), "abcd", [True, False], range(10)]
    found = every_pair(axes)
    for (i, first), (j, second) in itertools.combinations(enumerate(axes), 2):
        assert {(row[i], row[j]) for row in found} == set(itertools.product(first, second))
    assert 40 <= len(found) == len(set(found)) < 60, "of 240"
    assert found == every_pair(axes)


def test_pairs_that_cannot_be_are_left_out() -> None:
    found = every_pair([range(4), range(4), "ab"], lambda one, other, _: one != other)
    assert {row[:2] for row in found} == set(itertools.permutations(range(4), 2))


def test_one_parameter_has_all_its_values() -> None:
    assert every_pair(["abc"]) == [("a",), ("b",), ("c",)]
    assert every_pair([[], "ab"]) == []


def test_a_sweep_has_all_combinations_and_each_value_without_the_others() -> None:
    mark = parametrize_sweep(letter="abcd", number=range(3)).mark
    names, rows = mark.args
    assert names == ("letter", "number") and {row.values for row in rows} == set(itertools.product("abcd", range(3)))
    assert [row.values for row in rows if not row.marks] == [("a", 0), ("b", 1), ("c", 2), ("d", 0)]
    assert {each.name for row in rows for each in row.marks} == {"slow"}


def test_few_of_the_pairs_that_have_each_value_always_run() -> None:
    rows = every_pair([range(3), "abcd", [True, False]])
    marked = mark_sweep(rows)
    assert [row.values for row in marked] == rows
    always = [row.values for row in marked if not row.marks]
    assert [set(axis) for axis in zip(*always)] == [set(range(3)), set("abcd"), {True, False}]
    assert len(always) == 4


@pytest.mark.parametrize(
    ("expression", "are_left_out"),
    [
        ("not slow", True), ("not slow and not gpu", True), ("not gpu and not slow", True), ("", False),
        ("not gpu", False), ("slow", False), ("gpu or not slow", False),
    ],
)  # fmt: skip
def test_slow_tests_are_left_out_beside_others(expression: str, are_left_out: bool) -> None:
    config = SimpleNamespace(option=SimpleNamespace(markexpr=expression))
    assert leaves_out_slow(cast(pytest.Config, config)) == are_left_out


class Item:
    """What `split_sweeps` asks of a test."""

    def __init__(self, nodeid: str, *, marker: object = None) -> None:
        self.nodeid, self._marker = nodeid, marker

    def get_closest_marker(self, name: str) -> object:
        assert name == "every_case"
        return self._marker


def test_every_other_case_of_a_long_sweep_is_left_out() -> None:
    few = [Item(f"a.py::test_few[{i}]") for i in range(MANY_CASES)]
    many = [Item(f"a.py::test_many[{i}]") for i in range(200)]
    whole = [Item(f"a.py::test_whole[{i}]", marker=object()) for i in range(200)]
    tests: list[Any] = [*few, *many, *whole, Item("a.py::test_alone")]
    halves: tuple[list[Any], list[Any]] = split_sweeps(tests)
    kept, left_out = halves
    assert {*few, *whole, tests[-1]} <= {*kept} and {*left_out} == {*many} - {*kept}
    assert 60 < len(left_out) < 140
    assert split_sweeps(list(reversed(tests)))[0] == kept[::-1], "whatever the order"
