"""Conversations without a picture: sums and small talk."""

from __future__ import annotations

import random

from seesay.demo import phrasing as ph
from seesay.demo.example import Example, Turn
from seesay.demo.phrasing import ask
from seesay.demo.vocabulary import LARGEST_ADDEND, WORDS


def make_arithmetic(rng: random.Random) -> Example:
    turns = []
    for _ in range(rng.randint(3, 6)):
        a, b = rng.randint(0, LARGEST_ADDEND), rng.randint(0, LARGEST_ADDEND)
        turns.append((ask(rng, ph.SUM, a=a, b=b), f"{a} + {b} = {a + b}."))
    return Example(task="arithmetic", turns=tuple(turns))


def make_chat(rng: random.Random) -> Example:
    picture_questions = (*ph.DESCRIBE_IMAGE, *ph.DESCRIBE_CLIP, *ph.READ, *ph.LARGEST_BAR, *ph.SHAPE_OF_ONLY)
    turns: list[Turn] = []
    for _ in range(rng.randint(2, 5)):
        questions, answer = rng.choice(
            (
                (ph.GREETING, ph.GREETING_ANSWER),
                (ph.WHO, ph.WHO_ANSWER),
                (ph.ABILITY, ph.ABILITY_ANSWER),
                (ph.THANKS, ph.THANKS_ANSWER),
                (ph.GOODBYE, ph.GOODBYE_ANSWER),
                (ph.PHOTO, ph.PHOTO_ANSWER),
                (picture_questions, ph.NO_PICTURE_ANSWER),
                (ph.UNKNOWN, ph.UNKNOWN_ANSWER),
                (ph.UNKNOWN, ph.UNKNOWN_ANSWER),
            )
        )
        turns.append((ask(rng, questions, word=rng.choice(WORDS)), answer))
    return Example(task="chat", turns=tuple(turns))
