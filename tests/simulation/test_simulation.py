"""Whole engine loops under a virtual clock, by seed: `tests/simulation/run.py --seed N` runs one of them alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from .run import run_seeds

NUM_SEEDS, NUM_PARTS = 2000, 10


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("seesay")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_request_ends_once_with_the_right_tokens(part: int) -> None:
    size = NUM_SEEDS // NUM_PARTS
    failed = run_seeds(part * size, (part + 1) * size)
    reports = [f"python tests/simulation/run.py --seed {seed}\n{text}" for seed, text in failed]
    assert not failed, "\n".join(reports[:3])


def test_a_step_that_is_planned_again_has_no_empty_row() -> None:
    """The owner of the one waiting sequence that may begin has spent its share of the step."""
    assert not run_seeds(88427, 88428)
