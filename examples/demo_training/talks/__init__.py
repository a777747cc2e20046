"""Conversations in many wordings: about drawn scenes, about stand-ins for photos, and without a picture."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from demo_training.talks.boxes import talk_about_boxes
from demo_training.talks.clips import talk_about_clip
from demo_training.talks.groups import talk_about_blank, talk_about_group
from demo_training.talks.pages import talk_about_page, talk_about_pages
from demo_training.talks.pairs import talk_about_pair
from demo_training.talks.photos import talk_about_photo
from demo_training.talks.shapes import talk_about_shapes
from demo_training.talks.texts import talk_about_nothing
from demo_training.talks.written import talk_about_chart, talk_about_plain, talk_about_text
from demo_training.wording.voice import Voice
from seesay.demo.drawing import as_jpeg
from seesay.demo.example import Example
from seesay.demo.scenes import SKILLS

TALK_TASKS = (
    "describe", "count", "attribute", "read", "chart", "motion", "compare", "arithmetic", "follow_up", "chat", "photo",
    "group",
)  # fmt: skip
"""The tasks of `evaluate_phrasings.py`. `photo` uses stand-ins for photos."""

_Talk = Callable[[random.Random, str, bool], Example]


def make_talk(task: str, seed: int, *, held_out: bool = False) -> Example:
    """Return the conversation of `task` (of `TALK_TASKS` or `SKILLS`) for `seed`.

    held_out: the question at turn `asked` has a form held out of training; earlier turns are ordinary.
    """
    if task not in (*TALK_TASKS, *SKILLS):
        raise ValueError(f"task must be one of {', '.join((*TALK_TASKS, *SKILLS))}, got {task!r}")
    side = "held-out" if held_out else "training"
    rng = random.Random(f"seesay-demo/talk/{side}/{task}/{seed}")
    example = _pick_talk(rng, task)(rng, task, held_out)
    if rng.random() < 0.3:
        example = dataclasses.replace(example, system=Voice(rng, held_out=held_out).system_prompt())
    if rng.random() < 0.12 and task != "photo":
        quality = rng.randint(60, 95)
        example = dataclasses.replace(
            example,
            pictures=tuple(as_jpeg(picture, quality) for picture in example.pictures),
            frames=tuple(as_jpeg(frame, quality) for frame in example.frames),
        )
    return dataclasses.replace(example, media_last=rng.random() < 0.3)


_SKILL_TALKS: dict[str, _Talk] = {
    "page": talk_about_page,
    "find": talk_about_boxes,
    "count_pages": talk_about_pages,
}


def _pick_talk(rng: random.Random, task: str) -> _Talk:
    if task in _SKILL_TALKS:
        return _SKILL_TALKS[task]
    match task:
        case "describe":
            weighted: list[tuple[_Talk, int]] = [
                (talk_about_shapes, 5), (talk_about_chart, 2), (talk_about_clip, 3), (talk_about_text, 2),
                (talk_about_plain, 1), (talk_about_blank, 1),
            ]  # fmt: skip
        case "count":
            weighted = [(talk_about_shapes, 8), (talk_about_chart, 1), (talk_about_plain, 1)]
        case "attribute":
            weighted = [(talk_about_shapes, 8), (talk_about_text, 1), (talk_about_clip, 1), (talk_about_plain, 1)]
        case "read":
            weighted = [(talk_about_text, 1)]
        case "chart":
            weighted = [(talk_about_chart, 1)]
        case "motion":
            weighted = [(talk_about_clip, 1)]
        case "compare":
            weighted = [(talk_about_pair, 1)]
        case "follow_up":
            weighted = [
                (talk_about_shapes, 6), (talk_about_chart, 3), (talk_about_clip, 2), (talk_about_pair, 2),
                (talk_about_nothing, 1),
            ]  # fmt: skip
        case "group":
            weighted = [(talk_about_group, 12), (talk_about_blank, 1)]
        case "photo":
            weighted = [(talk_about_photo, 1)]
        case _:
            weighted = [(talk_about_nothing, 1)]
    talks, weights = zip(*weighted, strict=True)
    chosen: _Talk = rng.choices(talks, weights)[0]
    return chosen
