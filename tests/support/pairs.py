"""Parts of grids of parameters, for tests that would take long with all combinations: every value once, or every two
values of different parameters together.

Most faults need one value or two of them (Kuhn, Wallace, Gallo, "Software Fault Interactions and Implications for
Software Testing", 2004).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

import pytest


def leaves_out_slow(config: pytest.Config) -> bool:
    """Whether this run leaves out slow tests. Others may then repeat less often what they have seen."""
    return "not slow" in str(config.option.markexpr).split(" and ")


def load_profile(config: pytest.Config) -> None:
    """Let Hypothesis take its time, as its limits are times of a clock and machines may be busy. Where slow tests are
    left out, it draws a third of the examples."""
    from hypothesis import HealthCheck, settings

    settings.register_profile("seesay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("seesay")
    _Draws.divisor = 3 if leaves_out_slow(config) else 1


MANY_CASES = 20


def split_sweeps(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that run where slow tests are left out, and those that do not: every other case of a test with
    more than `MANY_CASES`, the same ones in every run, unless it is marked `every_case`."""
    counts = Counter(map(_function_of, items))
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_sweep = counts[_function_of(item)] > MANY_CASES and item.get_closest_marker("every_case") is None
        (left_out if is_sweep and crc32(item.nodeid.encode()) % 2 else kept).append(item)
    return kept, left_out


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


class _Draws:
    divisor = 1


def num_examples(number: int) -> int:
    """Return how many examples Hypothesis draws of a test that draws so many where slow tests run, too."""
    return max(1, number // _Draws.divisor)


def every_pair(
    axes: Sequence[Sequence[Any]], is_possible: Callable[..., bool] = lambda *_: True
) -> list[tuple[Any, ...]]:
    """Return combinations of a value of each of `axes`, few of them, in which any two values meet that do in a possible
    combination: the same ones in every process."""
    indices = itertools.product(*(range(len(axis)) for axis in axes))
    left = [each for each in indices if is_possible(*_pick(axes, each))]
    missing = set[Any]().union(*map(_pairs, left))
    found = []
    while missing:
        best = max(left, key=lambda each: len(missing.intersection(_pairs(each))))
        missing.difference_update(_pairs(best))
        found.append(best)
    return [_pick(axes, each) for each in sorted(found)]


def mark_sweep(rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the combinations, of which few that have every value are tests that always run; the others are slow."""
    missing = {(place, repr(value)) for row in rows for place, value in enumerate(row)}
    few = set[int]()
    while missing:
        values = [{(place, repr(value)) for place, value in enumerate(row)} for row in rows]
        best = max(range(len(rows)), key=lambda index: len(missing & values[index]))
        missing -= values[best]
        few.add(best)
    return [pytest.param(*row, marks=() if index in few else pytest.mark.slow) for index, row in enumerate(rows)]


def mark_after(number: int, values: Iterable[Any]) -> list[Any]:
    """Return the values, of which those behind the first `number` are slow tests."""
    return [pytest.param(value, marks=() if index < number else pytest.mark.slow) for index, value in enumerate(values)]


def parametrize_sweep(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by all combinations of these parameters. The others than some, which have every value, are
    slow tests."""
    values = [list(axis) for axis in axes.values()]
    few = {tuple(place % len(axis) for axis in values) for place in range(max(map(len, values)))}
    rows = [
        pytest.param(*_pick(values, indices), marks=() if indices in few else pytest.mark.slow)
        for indices in itertools.product(*(range(len(axis)) for axis in values))
    ]
    return pytest.mark.parametrize(tuple(axes), rows)


def _pick(axes: Sequence[Sequence[Any]], indices: Sequence[int]) -> tuple[Any, ...]:
    return tuple(axis[index] for axis, index in zip(axes, indices, strict=True))


def _pairs(indices: Sequence[int]) -> set[tuple[tuple[int, int], ...]]:
    """The places (axis, index) of a combination, two and two. With one axis: the one place."""
    places = list(enumerate(indices))
    return set(itertools.combinations(places, min(2, len(places))))
