"""Scenes of shapes that are found: the answer has their boxes, in the form that Qwen2.5-VL writes them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from seesay.demo import phrasing as ph
from seesay.demo.drawing import Thing
from seesay.demo.example import IMAGE_GRIDS, Canvas, Example, Turn, fit_size, pick_canvas, pick_name
from seesay.demo.phrasing import ask
from seesay.demo.shape_scenes import ask_attribute, draw_scene, pick_things
from seesay.demo.vocabulary import MAX_SHAPES, plural

FORCED_START = '[{"bbox_2d": ['
"""How every list of boxes starts that a grammar forces (`response_format={"type": "boxes"}`)."""


def boxes_answer(things: Sequence[Thing], canvas: Canvas) -> str:
    """Return the boxes of `things`, which are drawn on `canvas`, in pixels of the picture as the model sees it."""
    seen = fit_size(*canvas.size)
    scales = (seen[0] / canvas.width, seen[1] / canvas.height) * 2
    boxes = [[round(side * scale) for side, scale in zip(thing.box, scales, strict=True)] for thing in things]
    return json.dumps([{"bbox_2d": box, "label": thing.name} for box, thing in zip(boxes, things, strict=True)])


def references(thing: Thing, things: Sequence[Thing]) -> list[str]:
    """Return the words, without *the*, that mean `thing` and no other of `things`."""
    ways = (("name", thing.name), ("shape", thing.shape), ("colour", f"{thing.colour} shape"))
    return [words for by, words in ways if sum(getattr(t, by) == getattr(thing, by) for t in things) == 1]


def pick_absent(rng: random.Random, things: Sequence[Thing]) -> str:
    """Return the name of a shape that no thing has, mostly with a colour or a shape that one has."""
    names = {thing.name for thing in things}
    while True:
        thing, (colour, shape) = rng.choice(things), pick_name(rng)
        name = rng.choice((f"{thing.colour} {shape}", f"{colour} {thing.shape}", f"{colour} {shape}"))
        if name not in names:
            return name


def pick_group(rng: random.Random, things: Sequence[Thing]) -> tuple[str, list[Thing]]:
    """Return (what several things are called together, these things)."""
    thing = rng.choice(things)
    kind = rng.randrange(4)
    if kind == 0:
        return "shapes", list(things)
    if kind == 1:
        return f"{thing.colour} shapes", [t for t in things if t.colour == thing.colour]
    if kind == 2:
        return plural(thing.name), [t for t in things if t.name == thing.name]
    return plural(thing.shape), [t for t in things if t.shape == thing.shape]


def ask_find(rng: random.Random, things: Sequence[Thing], canvas: Canvas) -> Turn | None:
    """Ask for the box of one named shape."""
    thing = rng.choice(things)
    named = references(thing, things)
    if not named:
        return None
    return ask(rng, ph.FIND, thing=rng.choice(named)), boxes_answer([thing], canvas)


def _ask_more(rng: random.Random, things: list[Thing], canvas: Canvas) -> Turn | None:
    kind = rng.random()
    if kind < 0.2:
        name, group = pick_group(rng, things)
        return ask(rng, ph.FIND_ALL, things=name), boxes_answer(group, canvas)
    if kind < 0.3:
        return ask(rng, ph.FIND, thing=pick_absent(rng, things)), "[]"
    if kind < 0.5:
        return ask_attribute(rng, things, canvas)
    return ask_find(rng, things, canvas)


def make_find(rng: random.Random) -> Example:
    canvas = pick_canvas(rng, IMAGE_GRIDS)
    first: Turn | None = None
    while first is None:
        things = pick_things(rng, canvas, num_things=rng.randint(1, MAX_SHAPES - 1))
        first = ask_find(rng, things, canvas)
    more = [_ask_more(rng, things, canvas) for _ in range(rng.randint(1, 3))]
    turns = (first, *(turn for turn in more if turn is not None))
    return Example(task="find", turns=turns, pictures=(draw_scene(rng, canvas, things),))
