"""Makes the pictures, clips and conversations that the built-in checkpoint was trained and is measured on.

An example is determined by its task and seed. Training uses negative seeds only (`training_seed`) and evaluation seeds
from 1,000,000 up, so they never share a scene. Needs only Pillow and the standard library.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from seesay.demo.box_scenes import make_find
from seesay.demo.clip_scenes import make_motion
from seesay.demo.drawing import draw_things
from seesay.demo.example import CLIP_FPS, Canvas, Example, Turn, count_answer
from seesay.demo.page_scenes import make_count_pages, make_page
from seesay.demo.shape_scenes import (
    ask_attribute,
    ask_count,
    ask_describe,
    colour_of,
    describe_things,
    make_compare,
    place_things,
    shape_scene,
)
from seesay.demo.text_scenes import make_arithmetic, make_chat
from seesay.demo.vocabulary import SHAPES
from seesay.demo.written_scenes import make_chart, make_plain, make_read, make_spell

__all__ = [
    "CLIP_FPS", "FIRST_EVALUATION_SEED", "SKILLS", "TASKS", "TRAINING_TASKS", "Example", "Turn", "make_example",
    "sample_scene", "training_seed",
]  # fmt: skip

TASKS: tuple[str, ...] = ("describe", "count", "attribute", "read", "chart", "motion", "compare", "arithmetic")
"""The tasks that evaluation reports."""
TRAINING_TASKS: tuple[str, ...] = (*TASKS, "spell", "plain", "chat")
"""`spell` reads arbitrary letters and word pairs, `plain` shows one colour, `chat` is small talk without a picture."""
SKILLS: tuple[str, ...] = ("page", "find", "count_pages")
"""Tasks of a later training: read a page of lines, find a named shape as a box, count pages."""
FIRST_EVALUATION_SEED = 1_000_000


def training_seed(index: int) -> int:
    """Return the seed of the `index`-th (0, 1, …) training example; always negative."""
    if index < 0:
        raise ValueError(f"an example's index counts from 0, got {index}")
    return -1 - index


def make_example(task: str, seed: int) -> Example:
    """Return the example of `task` for `seed`. The first question is about the task; later ones may be about others."""
    try:
        make = _MAKERS[task]
    except KeyError:
        raise ValueError(f"unknown task {task!r}; known are {', '.join(_MAKERS)}") from None
    return make(random.Random(f"seesay-demo/{task}/{seed}"))


def sample_scene(seed: int = 0) -> Example:
    """Return a scene for demonstrations. Its first question is exactly `describe this image`."""
    rng = random.Random(f"seesay-demo/sample/{seed}")
    canvas = Canvas(width=252, height=252)
    colours = ("red", "orange", "green", "blue", "purple", "pink")
    background = (246, 248, 252)
    while True:
        things = place_things(rng, canvas, [(c, rng.choice(SHAPES)) for c in rng.sample(colours, 3)])
        if len(things) == 3 and len({thing.shape for thing in things}) == 3:
            break
    turns = (
        ("describe this image", describe_things(things)),
        ("how many shapes are there?", count_answer(3, "shape")),
        colour_of(things[0].shape, things[0].colour, f"what color is the {things[0].shape}?"),
    )
    return Example(task="describe", turns=turns, pictures=(draw_things(canvas.size, background, things),))


_MAKERS: dict[str, Callable[[random.Random], Example]] = {
    "describe": shape_scene("describe", ask_describe),
    "count": shape_scene("count", ask_count),
    "attribute": shape_scene("attribute", ask_attribute),
    "read": make_read,
    "chart": make_chart,
    "motion": make_motion,
    "compare": make_compare,
    "arithmetic": make_arithmetic,
    "spell": make_spell,
    "plain": make_plain,
    "chat": make_chat,
    "page": make_page,
    "find": make_find,
    "count_pages": make_count_pages,
}
