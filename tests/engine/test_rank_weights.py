"""New weights and sleep on several ranks: each takes its slices of what is given, or none does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from other_weights import read_weights
from rank_processes import find_followers
from updating import NAME, answers, check_refused, fresh, load, make_pairs, pid_of
from waiting import wait_until

from seesay.errors import CheckpointError
from seesay.offline.pipeline import Pipeline

Answers = list[list[int]]


@pytest.fixture(scope="module")
def pair(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A tiny checkpoint, and one of the same model with other weights."""
    return make_pairs(tiny_checkpoint, tmp_path_factory.mktemp("other"))(NAME)


@pytest.fixture(scope="module")
def expected(pair: list[Path]) -> list[Answers]:
    """The answers of one rank with the weights of each."""
    return [fresh(path) for path in pair]


@pytest.fixture(scope="module")
def loaded(pair: list[Path]) -> Iterator[Pipeline]:
    with load(pair[0], own=True, tp=2, num_gpu_blocks=60, num_cpu_blocks=20) as pipe:
        yield pipe


@pytest.fixture
def pipe(loaded: Pipeline, pair: list[Path]) -> Iterator[Pipeline]:
    """Two ranks, with the first weights again afterwards."""
    yield loaded
    loaded.update_weights(pair[0])


def test_a_folder_and_tensors_replace_weights(pipe: Pipeline, pair: list[Path], expected: list[Answers]) -> None:
    assert answers(pipe) == expected[0]
    pipe.update_weights(pair[1])
    assert answers(pipe) == expected[1]
    pipe.update_weights(read_weights(pair[0]))
    assert answers(pipe) == expected[0]


@pytest.mark.parametrize("part", ["visual", "layers.0", "embed_tokens", "lm_head"])
def test_some_weights_are_replaced(pipe: Pipeline, pair: list[Path], part: str, tmp_path: Path) -> None:
    """Also where the followers hold none of them."""
    some = {name: tensor for name, tensor in read_weights(pair[1]).items() if part in name}
    with load(pair[0]) as alone:
        alone.update_weights(some, partial=True)
        right = answers(alone)
    pipe.update_weights(some, partial=True)
    assert answers(pipe) == right


def test_what_does_not_fit_changes_no_rank(pipe: Pipeline, pair: list[Path], expected: list[Answers]) -> None:
    weights = read_weights(pair[1])
    name = next(name for name in weights if "down_proj" in name)
    with pytest.raises(CheckpointError, match="missing"):
        pipe.update_weights({other: tensor for other, tensor in weights.items() if other != name})
    with pytest.raises(CheckpointError, match="down_proj"):
        pipe.update_weights({**weights, name: torch.zeros(2, 3)})
    assert answers(pipe) == expected[0]


def test_sleep_and_wake_up(pipe: Pipeline, pair: list[Path], expected: list[Answers]) -> None:
    for level in (1, 2):
        pipe.sleep(level)
        check_refused(pipe)
        pipe.wake_up()
        assert answers(pipe) == expected[0]
    pipe.sleep(2)
    pipe.update_weights(read_weights(pair[1]))
    pipe.wake_up()
    assert answers(pipe) == expected[1]


def test_ranks_that_are_started_again_have_the_new_weights(
    pipe: Pipeline, pair: list[Path], expected: list[Answers]
) -> None:
    pipe.update_weights(pair[1])
    first = pid_of(pipe)
    assert first is not None
    [follower] = find_followers(first)
    os.kill(follower, signal.SIGKILL)
    wait_until(lambda: pid_of(pipe) not in (first, None), "all ranks are started again")
    assert answers(pipe) == expected[1]
