"""Scenes of plain shapes, with questions about kinds, counts, colours and places, on one picture or on two."""

from __future__ import annotations

import random
from collections.abc import Callable

from seesay.demo import phrasing as ph
from seesay.demo.drawing import Picture, Thing, draw_things, pick_background, pick_rgb
from seesay.demo.example import IMAGE_GRIDS, Canvas, Example, Turn, count_answer, pick_canvas, pick_name
from seesay.demo.phrasing import ask
from seesay.demo.vocabulary import COUNT_WORDS, MAX_SHAPES, PLACES, RGB, joined, plural, with_article


def place_things(rng: random.Random, canvas: Canvas, names: list[tuple[str, str]]) -> list[Thing]:
    """Put (colour, shape) pairs at random places, apart from each other; those that find no room are left out.

    Returns them from left to right, their centres at least 4 % of the width apart.
    """
    side = min(canvas.width, canvas.height)
    mean_side = (canvas.width * canvas.height) ** 0.5
    share = {1: 0.36, 2: 0.24, 3: 0.2}.get(len(names), 0.17)
    largest = min(share * mean_side, 0.4 * side)
    smallest = max(0.075 * mean_side, 12.5 * canvas.scale)
    things: list[Thing] = []
    for colour, shape in names:
        for _ in range(40):
            radius = rng.uniform(smallest, max(smallest, largest))
            x, y = rng.uniform(radius, canvas.width - radius), rng.uniform(radius, canvas.height - radius)
            apart = all(
                ((x - t.x) ** 2 + (y - t.y) ** 2) ** 0.5 > 1.1 * (radius + t.radius)
                and abs(x - t.x) > 0.04 * canvas.width
                for t in things
            )
            if apart:
                tilt = rng.uniform(-0.15, 0.15) if shape in ("square", "triangle", "star", "cross") else 0.0
                thing = Thing(colour=colour, shape=shape, x=x, y=y, radius=radius, rgb=pick_rgb(rng, colour), tilt=tilt)
                things.append(thing)
                break
    return sorted(things, key=lambda thing: thing.x)


def pick_things(rng: random.Random, canvas: Canvas, *, num_things: int) -> list[Thing]:
    """Return shapes, chosen freely or, to make equal ones likely, from a few kinds."""
    if rng.random() < 0.5:
        names = [pick_name(rng) for _ in range(num_things)]
    else:
        kinds = [pick_name(rng) for _ in range(rng.randint(1, 3))]
        names = [rng.choice(kinds) for _ in range(num_things)]
    return place_things(rng, canvas, names)


def draw_scene(rng: random.Random, canvas: Canvas, things: list[Thing]) -> Picture:
    outline: RGB | None = None
    if rng.random() < 0.2:
        outline = (rng.randint(0, 60),) * 3
    return draw_things(canvas.size, pick_background(rng), things, outline=outline)


def group_things(things: list[Thing]) -> list[str]:
    """Return equal shapes counted together, in order of their leftmost member: *a red circle*, *two blue stars*."""
    counts: dict[tuple[str, str], int] = {}
    for thing in things:
        counts[thing.colour, thing.shape] = counts.get((thing.colour, thing.shape), 0) + 1
    return [
        with_article(f"{colour} {shape}") if n == 1 else f"{COUNT_WORDS[n]} {colour} {plural(shape)}"
        for (colour, shape), n in counts.items()
    ]


def describe_things(things: list[Thing]) -> str:
    return f"The picture shows {joined(group_things(things))}."


def colour_of(shape: str, colour: str, question: str) -> Turn:
    return question, f"The {shape} is {colour}."


def ask_describe(rng: random.Random, things: list[Thing], _canvas: Canvas) -> Turn:
    return ask(rng, ph.DESCRIBE_IMAGE), describe_things(things)


def ask_count(rng: random.Random, things: list[Thing], _canvas: Canvas) -> Turn:
    """Ask how many shapes there are in all, or of a shape, a colour, or both; sometimes of one that is absent."""
    thing = rng.choice(things)
    other_colour, other_shape = pick_name(rng)
    wanted_colour, wanted_shape = rng.choice(
        (
            (None, None),
            (None, thing.shape),
            (None, thing.shape),
            (thing.colour, None),
            (thing.colour, thing.shape),
            (None, other_shape),
            (other_colour, thing.shape),
        )
    )
    count = sum(wanted_colour in (None, t.colour) and wanted_shape in (None, t.shape) for t in things)
    noun = wanted_shape or "shape"
    spoken = "object" if wanted_shape is None and rng.random() < 0.4 else noun
    prefix = f"{wanted_colour} " if wanted_colour else ""
    question = ask(rng, ph.COUNT, things=prefix + plural(spoken))
    return question, count_answer(count, prefix + noun)


def _ask_colour(rng: random.Random, things: list[Thing]) -> Turn | None:
    if len(things) == 1 and rng.random() < 0.4:
        return ask(rng, ph.COLOUR_OF_ONLY, colour="colour"), f"It is {things[0].colour}."
    thing = rng.choice(things)
    if sum(t.shape == thing.shape for t in things) > 1:
        return None
    return colour_of(thing.shape, thing.colour, ask(rng, ph.COLOUR_OF, thing=thing.shape, colour="colour"))


def _ask_shape(rng: random.Random, things: list[Thing]) -> Turn | None:
    if len(things) == 1 and rng.random() < 0.4:
        return ask(rng, ph.SHAPE_OF_ONLY), f"It is {with_article(things[0].shape)}."
    thing = rng.choice(things)
    if sum(t.colour == thing.colour for t in things) > 1:
        return None
    return ask(rng, ph.SHAPE_OF, colour=thing.colour), f"The {thing.colour} shape is {with_article(thing.shape)}."


def _unique_reference(rng: random.Random, thing: Thing, things: list[Thing]) -> str | None:
    """Return words that mean `thing` and no other of `things`, without *the*."""
    if sum(t.shape == thing.shape for t in things) == 1 and rng.random() < 0.5:
        return thing.shape
    return thing.name if sum(t.name == thing.name for t in things) == 1 else None


def third(fraction: float) -> int | None:
    """Return the third of the picture that a coordinate lies in, or None near a border between two thirds."""
    if min(abs(fraction - 1 / 3), abs(fraction - 2 / 3)) < 0.04:
        return None
    return min(2, int(fraction * 3))


def _ask_place(rng: random.Random, things: list[Thing], canvas: Canvas) -> Turn | None:
    thing = rng.choice(things)
    reference = _unique_reference(rng, thing, things)
    column, row = third(thing.x / canvas.width), third(thing.y / canvas.height)
    if reference is None or column is None or row is None:
        return None
    return ask(rng, ph.PLACE_OF, thing=reference), f"The {reference} is {PLACES[row][column]}."


_SIDES = (("on the left", 0, 1), ("on the right", 0, -1), ("at the top", 1, 1), ("at the bottom", 1, -1))


def _ask_side(rng: random.Random, things: list[Thing], canvas: Canvas) -> Turn | None:
    """Ask for the shape at one side. Returns None unless it is clearly on that side and clearly the furthest."""
    side, axis, sign = rng.choice(_SIDES)

    def distance(thing: Thing) -> float:
        fraction = (thing.x / canvas.width, thing.y / canvas.height)[axis]
        return fraction if sign > 0 else 1 - fraction

    first, *rest = sorted(things, key=distance)
    if distance(first) > 0.45 or (rest and distance(rest[0]) - distance(first) < 0.1):
        return None
    return ask(rng, ph.AT_SIDE, side=side), f"{with_article(first.name).capitalize()} is {side}."


_RELATIONS = (("left of", 0, -1), ("right of", 0, 1), ("above", 1, -1), ("below", 1, 1))


def _ask_relation(rng: random.Random, things: list[Thing], canvas: Canvas) -> Turn | None:
    if len(things) < 2:
        return None
    one, other = rng.sample(things, 2)
    names = [_unique_reference(rng, thing, things) for thing in (one, other)]
    relation, axis, sign = rng.choice(_RELATIONS)
    offset = ((one.x - other.x) / canvas.width, (one.y - other.y) / canvas.height)[axis] * sign
    if names[0] is None or names[1] is None or abs(offset) < 0.1:
        return None
    if len(things) == 2 and offset > 0 and rng.random() < 0.5:
        answer = f"{with_article(one.name).capitalize()} is {relation} the {names[1]}."
        return ask(rng, ph.WHAT_IS_BESIDE, relation=relation, other=names[1]), answer
    answer = "Yes." if offset > 0 else "No."
    return ask(rng, ph.IS_BESIDE, one=names[0], relation=relation, other=names[1]), answer


def _ask_existence(rng: random.Random, things: list[Thing]) -> Turn:
    thing = rng.choice(things)
    colour, shape = pick_name(rng)
    name = rng.choice((thing.name, thing.name, f"{thing.colour} {shape}", f"{colour} {thing.shape}"))
    answer = "Yes." if any(t.name == name for t in things) else "No."
    return ask(rng, ph.IS_THERE, thing=with_article(name)), answer


def _ask_extreme_size(rng: random.Random, things: list[Thing]) -> Turn | None:
    if len(things) < 2:
        return None
    ordered = sorted(things, key=lambda thing: thing.radius)
    if rng.random() < 0.5:
        if ordered[-1].radius < 1.3 * ordered[-2].radius:
            return None
        return ask(rng, ph.LARGEST_SHAPE), f"The largest shape is the {ordered[-1].name}."
    if ordered[1].radius < 1.3 * ordered[0].radius:
        return None
    return ask(rng, ph.SMALLEST_SHAPE), f"The smallest shape is the {ordered[0].name}."


def ask_attribute(rng: random.Random, things: list[Thing], canvas: Canvas) -> Turn:
    """Ask for a colour, a shape or a position."""
    while True:
        kind = rng.randrange(6)
        turn = (
            _ask_colour(rng, things) if kind == 0
            else _ask_shape(rng, things) if kind == 1
            else _ask_place(rng, things, canvas) if kind == 2
            else _ask_side(rng, things, canvas) if kind == 3
            else _ask_relation(rng, things, canvas) if kind == 4
            else _ask_existence(rng, things)
        )  # fmt: skip
        if turn is not None:
            return turn


def _ask_anything(rng: random.Random, things: list[Thing], canvas: Canvas) -> Turn:
    choice = rng.random()
    if choice < 0.25:
        return ask_describe(rng, things, canvas)
    if choice < 0.5:
        return ask_count(rng, things, canvas)
    if choice < 0.58:
        return _ask_extreme_size(rng, things) or ask_count(rng, things, canvas)
    return ask_attribute(rng, things, canvas)


def shape_scene(
    task: str, ask_first: Callable[[random.Random, list[Thing], Canvas], Turn]
) -> Callable[[random.Random], Example]:
    """Return the maker of examples of a task about shapes, given how its first question is asked."""

    def make(rng: random.Random) -> Example:
        canvas = pick_canvas(rng, IMAGE_GRIDS)
        num_things = rng.randint(1, MAX_SHAPES if task == "count" else MAX_SHAPES - 1)
        things = pick_things(rng, canvas, num_things=num_things)
        turns = [ask_first(rng, things, canvas)]
        for _ in range(rng.randint(3, 7)):
            question, answer = _ask_anything(rng, things, canvas)
            if answer in ("Yes.", "No.") or all(answer != given for _, given in turns):
                turns.append((question, answer))
        return Example(task=task, turns=tuple(turns), pictures=(draw_scene(rng, canvas, things),))

    return make


def make_compare(rng: random.Random) -> Example:
    return _compare_counts(rng) if rng.random() < 0.4 else _compare_kinds(rng)


def _ask_nth(rng: random.Random, scenes: list[list[Thing]]) -> list[Turn]:
    return [
        (ask(rng, ph.DESCRIBE_NTH, nth=nth), f"The {nth} picture shows {joined(group_things(things))}.")
        for nth, things in zip(("first", "second"), scenes, strict=True)
    ]


def _compare_counts(rng: random.Random) -> Example:
    canvases = [pick_canvas(rng, IMAGE_GRIDS) for _ in range(2)]
    scenes = [pick_things(rng, canvas, num_things=rng.randint(1, MAX_SHAPES - 1)) for canvas in canvases]
    first, second = map(len, scenes)
    if first == second:
        answer = "Both pictures have the same number of shapes."
    else:
        answer = f"The {'first' if first > second else 'second'} picture has more shapes."
    turns = [(ask(rng, ph.MORE_SHAPES), answer), *_ask_nth(rng, scenes)]
    pictures = tuple(draw_scene(rng, canvas, things) for canvas, things in zip(canvases, scenes, strict=True))
    return Example(task="compare", turns=tuple(turns), pictures=pictures)


def _compare_kinds(rng: random.Random) -> Example:
    canvases = [pick_canvas(rng, IMAGE_GRIDS) for _ in range(2)]
    (colour, shape), (other_colour, other_shape) = pick_name(rng), pick_name(rng)
    if rng.random() < 0.45:
        other_colour = colour
    if rng.random() < 0.45:
        other_shape = shape
    scenes = [
        place_things(rng, canvas, [name])
        for canvas, name in zip(canvases, ((colour, shape), (other_colour, other_shape)), strict=True)
    ]
    if shape == other_shape:
        shape_answer = f"Yes, both are {plural(shape)}."
    else:
        shape_answer = f"No, the first is {with_article(shape)} and the second is {with_article(other_shape)}."
    if colour == other_colour:
        colour_answer = f"Yes, both are {colour}."
    else:
        colour_answer = f"No, the first is {colour} and the second is {other_colour}."
    turns = [
        (ask(rng, ph.SAME_SHAPE), shape_answer),
        (ask(rng, ph.SAME_COLOUR, colour="colour"), colour_answer),
    ]
    rng.shuffle(turns)
    pictures = tuple(draw_scene(rng, canvas, things) for canvas, things in zip(canvases, scenes, strict=True))
    return Example(task="compare", turns=(*turns, *_ask_nth(rng, scenes)), pictures=pictures)
