"""Scenes follow from their seed, and training's seeds never meet evaluation's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import num_examples

from seesay.demo.scenes import (
    CLIP_FPS,
    FIRST_EVALUATION_SEED,
    TASKS,
    TRAINING_TASKS,
    Example,
    make_example,
    sample_scene,
    training_seed,
)

tasks = st.sampled_from(TRAINING_TASKS)
seeds = st.integers(min_value=-(2**40), max_value=2**40)


def pixels(example: Example) -> list[bytes]:
    return [image.tobytes() for image in example.images + example.clip]


@given(task=tasks, seed=seeds)
@settings(max_examples=num_examples(60), deadline=None)
def test_an_example_follows_from_its_seed(task: str, seed: int) -> None:
    one, again = make_example(task, seed), make_example(task, seed)
    assert one.turns == again.turns
    assert pixels(one) == pixels(again)


def test_neighbouring_seeds_differ() -> None:
    turns = {make_example("describe", seed).turns for seed in range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + 50)}
    assert len(turns) == 50


@given(index=st.integers(min_value=0, max_value=2**60))
def test_training_seeds_are_below_every_evaluation_seed(index: int) -> None:
    assert training_seed(index) < 0 < FIRST_EVALUATION_SEED


def test_training_seeds_differ_and_count_from_zero() -> None:
    assert [training_seed(i) for i in range(3)] == [-1, -2, -3]
    with pytest.raises(ValueError, match="counts from 0"):
        training_seed(-1)


@given(task=tasks, seed=seeds)
@settings(max_examples=num_examples(60), deadline=None)
def test_media_suit_the_task(task: str, seed: int) -> None:
    example = make_example(task, seed)
    assert example.turns and all(question and answer for question, answer in example.turns)
    assert len(example.images) == {"compare": 2, "motion": 0, "arithmetic": 0, "chat": 0}.get(task, 1)
    assert len(example.clip) in (range(4, 9) if task == "motion" else (0,))
    for picture in example.pictures + example.frames:
        assert picture.image.mode == "RGB"
        assert min(picture.image.size) >= 90 and max(picture.image.size) <= 700


def test_a_moving_shape_moves_in_every_frame() -> None:
    example = next(e for e in (make_example("motion", s) for s in range(20)) if "still" not in e.turns[0][1])
    frames = [np.asarray(frame) for frame in example.clip]
    assert all((one != other).any() for one, other in itertools.pairwise(frames))
    assert CLIP_FPS == 2.0


def test_the_sample_scene_asks_for_a_description_first() -> None:
    example = sample_scene(3)
    assert example.turns[0][0] == "describe this image"
    assert len(example.images) == 1
    assert pixels(example) == pixels(sample_scene(3)) != pixels(sample_scene(4))


def test_unknown_tasks_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown task 'dance'"):
        make_example("dance", 0)


def test_reported_tasks_are_the_eight_named_ones() -> None:
    assert TASKS == ("describe", "count", "attribute", "read", "chart", "motion", "compare", "arithmetic")
