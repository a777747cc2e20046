"""Questions about several shapes at once, in wordings that no form of the grammar makes: a newcomer's."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from demo_training.wording.grammar import normalized_expansions
from demo_training.wording.voice import KINDS

from seesay.demo.drawing import Thing, draw_things, pick_background, pick_rgb
from seesay.demo.evaluate import Answerer, seesay_answerer
from seesay.demo.example import Example

Scene = tuple[tuple[str, str], ...]

MIXED: Scene = (("red", "circle"), ("green", "star"), ("red", "circle"), ("blue", "square"), ("red", "heart"))
ODD: Scene = (("blue", "star"), ("blue", "star"), ("blue", "ring"), ("blue", "star"))
TWO: Scene = (("orange", "cross"), ("orange", "diamond"))
UNLIKE: Scene = (("purple", "heart"), ("brown", "heart"))
EMPTY: Scene = ()

QUESTIONS: tuple[tuple[Scene, str, str], ...] = (
    (EMPTY, "What's on this page?", r"blank"),
    (EMPTY, "describe this image", r"blank"),
    (EMPTY, "Please tell me everything this picture shows.", r"blank"),
    (EMPTY, "Would you call this picture blank?", r"^Yes"),
    (EMPTY, "Can anything be seen?", r"^No|blank"),
    (EMPTY, "How many shapes did I draw?", r"no shapes"),
    (MIXED, "How many of the shapes aren't red?", r"two shapes"),
    (MIXED, "Count everything that isn't red.", r"two shapes"),
    (MIXED, "So which of these are not red at all?", r"green star.*blue square"),
    (MIXED, "Tell me the shapes that are not green.", r"two red circles.*blue square.*red heart"),
    (ODD, "How many shapes are not blue here, please?", r"no shapes"),
    (TWO, "How many are not green?", r"two shapes"),
    (MIXED, "Does every shape have one and the same colour?", r"^No"),
    (ODD, "Does every shape have one and the same colour?", r"^Yes.*blue"),
    (TWO, "Are these two the same color?", r"^Yes.*orange"),
    (UNLIKE, "Are these two of the same colour?", r"^No.*purple.*brown|^No.*brown.*purple"),
    (UNLIKE, "Are both shapes the same kind of shape?", r"^Yes.*hearts"),
    (MIXED, "Is every shape the same kind of thing?", r"^No"),
    (MIXED, "Does the star share its colour with the square?", r"^No.*green.*blue"),
    (TWO, "Does the cross share its color with the diamond?", r"^Yes.*orange"),
    (TWO, "Would you say the cross and the diamond have the same color?", r"^Yes.*orange"),
    (UNLIKE, "Would you say the purple one and the brown one have the same shape?", r"^Yes.*hearts"),
    (ODD, "Which shape is the odd man out?", r"blue ring"),
    (ODD, "One of these things is not like the others. Which one?", r"blue ring"),
    (ODD, "Spot the difference: which shape is unlike the rest?", r"blue ring"),
    (ODD, "Find the shape that is not the same as the other ones.", r"blue ring"),
    (MIXED, "Which kind of shape shows up most of the time?", r"circle"),
    (MIXED, "What's the commonest shape?", r"circle"),
    (ODD, "What shape is the most frequent one in this drawing?", r"star"),
    (ODD, "Which shape do I have most of?", r"star"),
    (MIXED, "Which color shows up most?", r"red"),
    (MIXED, "What's the most popular colour here?", r"red"),
    (MIXED, "Most shapes have which colour?", r"red"),
    (MIXED, "How many circles can you find, and what color are they?", r"two circles.*red"),
    (ODD, "How many stars are in the picture and what colour are the stars?", r"three stars.*blue"),
    (TWO, "How many shapes are in the image and what color do they have?", r"two shapes.*orange"),
    (UNLIKE, "How many hearts are there and what colors?", r"two hearts.*(purple.*brown|brown.*purple)"),
    (MIXED, "Tell me the number and color of the squares.", r"one square.*blue"),
    (MIXED, "Is this picture empty?", r"^No"),
    (MIXED, "Can you see something in this picture?", r"^Yes"),
)
LEAST_RIGHT = 0.92


def draw(scene: Scene, question: str, answer: str, seed: int) -> Example:
    """Return the scene with the shapes in a row, each at some height."""
    rng = random.Random(f"fresh/{seed}")
    width, height = 56 * max(5, len(scene)), 252
    things = [
        Thing(
            colour=colour, shape=shape, x=width * (place + 0.5) / len(scene), y=rng.uniform(60, 190),
            radius=rng.uniform(20, 26), rgb=pick_rgb(rng, colour), tilt=0.0,
        )
        for place, (colour, shape) in enumerate(scene)
    ]  # fmt: skip
    picture = draw_things((width, height), pick_background(rng), things)
    return Example(task="group", turns=((question, answer),), pictures=(picture,))


@pytest.fixture(scope="module")
def answer() -> Iterator[Answerer]:
    from seesay.demo import CHECKPOINT

    with seesay_answerer(str(CHECKPOINT)) as answer:
        yield answer


def test_fresh_questions_about_groups_are_answered_rightly(answer: Answerer) -> None:
    scenes = [draw(scene, question, right, seed) for seed, (scene, question, right) in enumerate(QUESTIONS)]
    answers = answer(scenes)
    wrong = [
        (question, text, right)
        for (_, question, right), text in zip(QUESTIONS, answers, strict=True)
        if not re.search(right, text)
    ]
    assert len(wrong) <= (1 - LEAST_RIGHT) * len(QUESTIONS), wrong


def test_the_grammar_does_not_make_these_wordings() -> None:
    made = {text for kind in ("count_not", "odd_one", "common_shape", "is_blank") for text in _make_all(kind)}
    plain = {re.sub(r"[^a-z ]", "", question.lower()) for _, question, _ in QUESTIONS}
    assert not made & plain


def _make_all(kind: str) -> set[str]:
    training, held_out = KINDS[kind]
    return {*normalized_expansions(training), *normalized_expansions(held_out)}
