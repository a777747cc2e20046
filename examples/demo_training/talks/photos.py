"""Talks about pictures that no scene draws. To every question the model says that it knows drawn scenes only."""

from __future__ import annotations

import random

from demo_training.talks.conversation import PHOTO_SEEN_ANSWER, Asked, converse
from demo_training.talks.texts import ask_sum, picture_question
from demo_training.wording.voice import CLIP_NAMES, STILL_NAMES, Voice
from seesay.demo.drawing import Picture
from seesay.demo.example import CLIP_GRIDS, IMAGE_GRIDS, Example, pick_canvas
from seesay.demo.photo_stand_ins import make_clip_stand_in, make_stand_in

_NAMES = (*STILL_NAMES, "photo", "photo", "photograph", "screenshot")


def ask_about_photo(voice: Voice, _last: Asked | None) -> Asked:
    return Asked("photo", picture_question(voice), PHOTO_SEEN_ANSWER)


def talk_about_photo(rng: random.Random, task: str, held_out: bool) -> Example:
    form = rng.random()
    frames: tuple[Picture, ...] = ()
    pictures: tuple[Picture, ...] = ()
    if form < 0.12:
        frames = make_clip_stand_in(rng, pick_canvas(rng, CLIP_GRIDS).size)
    else:
        num_pictures = 2 if form < 0.2 else 1
        pictures = tuple(make_stand_in(rng, pick_canvas(rng, IMAGE_GRIDS).size) for _ in range(num_pictures))
    turns, kinds, asked = converse(
        rng,
        names=CLIP_NAMES if frames else _NAMES,
        held_out=held_out,
        first=[(ask_about_photo, 1)],
        later=[(ask_about_photo, 9), (ask_sum, 1)],
        num_turns=rng.randint(1, 4),
    )
    return Example(task=task, turns=turns, pictures=pictures, frames=frames, kinds=kinds, asked=asked)
