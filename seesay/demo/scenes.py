"""Makes the pictures, clips and conversations that the built-in checkpoint was trained and is measured on.

Everything follows from a task and a seed. Training draws negative seeds only (`training_seed`), evaluation draws
from 1,000,000 up, so that the two can never meet. Needs Pillow and the standard library alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from seesay.demo import phrasing as ph
from seesay.demo.drawing import (
    Bar,
    Picture,
    Thing,
    draw_bar_chart,
    draw_text,
    draw_things,
    pick_background,
    pick_rgb,
    text_size,
)
from seesay.demo.phrasing import ask
from seesay.demo.vocabulary import (
    COLOURS,
    COUNT_WORDS,
    DIRECTIONS,
    GLYPHS,
    LABEL_SETS,
    LARGEST_ADDEND,
    LARGEST_BAR_VALUE,
    MAX_SHAPES,
    PLACES,
    RGB,
    SHAPES,
    WORDS,
    joined,
    plural,
    with_article,
)

TASKS: tuple[str, ...] = ("describe", "count", "attribute", "read", "chart", "motion", "compare", "arithmetic")
"""The tasks that evaluation reports."""
TRAINING_TASKS: tuple[str, ...] = (*TASKS, "spell", "plain", "chat")
"""`spell` reads arbitrary letters and word pairs, `plain` shows one colour, `chat` is small talk without a picture."""
FIRST_EVALUATION_SEED = 1_000_000
CLIP_FPS = 2.0
"""Frames per second of every clip."""

CELL_PX = 28
"""Pixels per side that one visual token covers once the picture has its final size."""

Turn = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A conversation about some pictures, or one clip, or nothing; its media come with the first question."""

    task: str
    turns: tuple[Turn, ...]
    pictures: tuple[Picture, ...] = ()
    frames: tuple[Picture, ...] = ()

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """The still pictures."""
        return tuple(picture.image for picture in self.pictures)

    @property
    def clip(self) -> tuple[Image.Image, ...]:
        """The frames of the clip, `CLIP_FPS` of them per second."""
        return tuple(frame.image for frame in self.frames)


def training_seed(index: int) -> int:
    """The seed of the `index`-th (0, 1, …) training example; always negative."""
    if index < 0:
        raise ValueError(f"an example's index counts from 0, got {index}")
    return -1 - index


def make_example(task: str, seed: int) -> Example:
    """The example of `task` that `seed` stands for. The first question is about the task, later ones may roam."""
    try:
        make = _MAKERS[task]
    except KeyError:
        raise ValueError(f"unknown task {task!r}; known are {', '.join(TRAINING_TASKS)}") from None
    return make(random.Random(f"seesay-demo/{task}/{seed}"))


def sample_scene(seed: int = 0) -> Example:
    """A pretty picture to show off with; its first question is exactly `describe this image`."""
    rng = random.Random(f"seesay-demo/sample/{seed}")
    canvas = _Canvas(width=252, height=252)
    colours = ("red", "orange", "green", "blue", "purple", "pink")
    background = (246, 248, 252)
    while True:
        things = _place_things(rng, canvas, [(c, rng.choice(SHAPES)) for c in rng.sample(colours, 3)])
        if len(things) == 3 and len({thing.shape for thing in things}) == 3:
            break
    turns = (
        ("describe this image", _describe_things(things)),
        ("how many shapes are there?", _count_answer(3, "shape")),
        _colour_of(things[0].shape, things[0].colour, f"what color is the {things[0].shape}?"),
    )
    return Example(task="describe", turns=turns, pictures=(draw_things(canvas.size, background, things),))


# --- canvases and shapes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Canvas:
    """A picture's size in pixels; `scale` says how much larger than the model will see it."""

    width: int
    height: int
    scale: float = 1.0

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height


def _grids(min_cells: int, max_cells: int) -> tuple[tuple[int, int], ...]:
    """Columns × rows of visual tokens; squarish ones appear more often."""
    grids = []
    for columns, rows in itertools.product(range(4, 15), repeat=2):
        aspect = max(columns, rows) / min(columns, rows)
        if min_cells <= columns * rows <= max_cells and aspect <= 2.5:
            grids += [(columns, rows)] * (4 if aspect <= 1.34 else 1)
    return tuple(grids)


_IMAGE_GRIDS = _grids(36, 81)
_WIDE_GRIDS = tuple((columns, rows) for columns, rows in _IMAGE_GRIDS if columns >= 7 and rows >= 5)
_CLIP_GRIDS = _grids(16, 36)


def _pick_canvas(rng: random.Random, grids: tuple[tuple[int, int], ...]) -> _Canvas:
    columns, rows = rng.choice(grids)
    scale = 1.0 if rng.random() < 0.7 else rng.uniform(0.85, 1.7)
    return _Canvas(width=round(columns * CELL_PX * scale), height=round(rows * CELL_PX * scale), scale=scale)


def _place_things(rng: random.Random, canvas: _Canvas, names: list[tuple[str, str]]) -> list[Thing]:
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
                thing = Thing(
                    colour=colour, shape=shape, x=x, y=y, radius=radius, rgb=pick_rgb(rng, colour), tilt=tilt
                )
                things.append(thing)
                break
    return sorted(things, key=lambda thing: thing.x)


def _pick_name(rng: random.Random) -> tuple[str, str]:
    return rng.choice(tuple(COLOURS)), rng.choice(SHAPES)


def _pick_things(rng: random.Random, canvas: _Canvas, *, num_things: int) -> list[Thing]:
    """Shapes either all drawn freely or, to make equal ones likely, from a few kinds."""
    if rng.random() < 0.5:
        names = [_pick_name(rng) for _ in range(num_things)]
    else:
        kinds = [_pick_name(rng) for _ in range(rng.randint(1, 3))]
        names = [rng.choice(kinds) for _ in range(num_things)]
    return _place_things(rng, canvas, names)


def _draw(rng: random.Random, canvas: _Canvas, things: list[Thing]) -> Picture:
    outline: RGB | None = None
    if rng.random() < 0.2:
        outline = (rng.randint(0, 60),) * 3
    return draw_things(canvas.size, pick_background(rng), things, outline=outline)


# --- questions about shapes -------------------------------------------------------------------------------------


def _group(things: list[Thing]) -> list[str]:
    """Equal shapes counted together, in order of their leftmost member: *a red circle*, *two blue stars*."""
    counts: dict[tuple[str, str], int] = {}
    for thing in things:
        counts[thing.colour, thing.shape] = counts.get((thing.colour, thing.shape), 0) + 1
    return [
        with_article(f"{colour} {shape}") if n == 1 else f"{COUNT_WORDS[n]} {colour} {plural(shape)}"
        for (colour, shape), n in counts.items()
    ]


def _describe_things(things: list[Thing]) -> str:
    return f"The picture shows {joined(_group(things))}."


def _count_answer(count: int, noun: str) -> str:
    verb, noun = ("is", noun) if count == 1 else ("are", plural(noun))
    return f"There {verb} {COUNT_WORDS[count]} {noun}."


def _colour_of(shape: str, colour: str, question: str) -> Turn:
    return question, f"The {shape} is {colour}."


def _ask_describe(rng: random.Random, things: list[Thing]) -> Turn:
    return ask(rng, ph.DESCRIBE_IMAGE), _describe_things(things)


def _ask_count(rng: random.Random, things: list[Thing]) -> Turn:
    """Count all shapes, or those of a shape, a colour, or both; now and then something that is not there."""
    thing = rng.choice(things)
    other_colour, other_shape = _pick_name(rng)
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
    return question, _count_answer(count, prefix + noun)


def _ask_colour(rng: random.Random, things: list[Thing]) -> Turn | None:
    if len(things) == 1 and rng.random() < 0.4:
        return ask(rng, ph.COLOUR_OF_ONLY, colour="colour"), f"It is {things[0].colour}."
    thing = rng.choice(things)
    if sum(t.shape == thing.shape for t in things) > 1:
        return None
    return _colour_of(thing.shape, thing.colour, ask(rng, ph.COLOUR_OF, thing=thing.shape, colour="colour"))


def _ask_shape(rng: random.Random, things: list[Thing]) -> Turn | None:
    if len(things) == 1 and rng.random() < 0.4:
        return ask(rng, ph.SHAPE_OF_ONLY), f"It is {with_article(things[0].shape)}."
    thing = rng.choice(things)
    if sum(t.colour == thing.colour for t in things) > 1:
        return None
    return ask(rng, ph.SHAPE_OF, colour=thing.colour), f"The {thing.colour} shape is {with_article(thing.shape)}."


def _unique_reference(rng: random.Random, thing: Thing, things: list[Thing]) -> str | None:
    """Words that mean `thing` and no other of `things`, without *the*."""
    if sum(t.shape == thing.shape for t in things) == 1 and rng.random() < 0.5:
        return thing.shape
    return thing.name if sum(t.name == thing.name for t in things) == 1 else None


def _third(fraction: float) -> int | None:
    """Which third of the picture a coordinate lies in; None near a border between two thirds."""
    if min(abs(fraction - 1 / 3), abs(fraction - 2 / 3)) < 0.04:
        return None
    return min(2, int(fraction * 3))


def _ask_place(rng: random.Random, things: list[Thing], canvas: _Canvas) -> Turn | None:
    thing = rng.choice(things)
    reference = _unique_reference(rng, thing, things)
    column, row = _third(thing.x / canvas.width), _third(thing.y / canvas.height)
    if reference is None or column is None or row is None:
        return None
    return ask(rng, ph.PLACE_OF, thing=reference), f"The {reference} is {PLACES[row][column]}."


def _ask_side(rng: random.Random, things: list[Thing], canvas: _Canvas) -> Turn | None:
    """What lies furthest to one side, if it is clearly on that side and the next one clearly is not as far."""
    side, axis, sign = rng.choice((("on the left", 0, 1), ("on the right", 0, -1), ("at the top", 1, 1), ("at the bottom", 1, -1)))

    def distance(thing: Thing) -> float:
        fraction = (thing.x / canvas.width, thing.y / canvas.height)[axis]
        return fraction if sign > 0 else 1 - fraction

    first, *rest = sorted(things, key=distance)
    if distance(first) > 0.45 or (rest and distance(rest[0]) - distance(first) < 0.1):
        return None
    return ask(rng, ph.AT_SIDE, side=side), f"{with_article(first.name).capitalize()} is {side}."


_RELATIONS = (("left of", 0, -1), ("right of", 0, 1), ("above", 1, -1), ("below", 1, 1))


def _ask_relation(rng: random.Random, things: list[Thing], canvas: _Canvas) -> Turn | None:
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
    colour, shape = _pick_name(rng)
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


def _ask_attribute(rng: random.Random, things: list[Thing], canvas: _Canvas) -> Turn:
    """A question about colour, shape or position."""
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


def _ask_anything(rng: random.Random, things: list[Thing], canvas: _Canvas) -> Turn:
    choice = rng.random()
    if choice < 0.25:
        return _ask_describe(rng, things)
    if choice < 0.5:
        return _ask_count(rng, things)
    if choice < 0.58:
        return _ask_extreme_size(rng, things) or _ask_count(rng, things)
    return _ask_attribute(rng, things, canvas)


def _shape_scene(task: str, ask_first: Callable[[random.Random, list[Thing], _Canvas], Turn]) -> Callable[[random.Random], Example]:  # fmt: skip
    def make(rng: random.Random) -> Example:
        canvas = _pick_canvas(rng, _IMAGE_GRIDS)
        num_things = rng.randint(1, MAX_SHAPES if task == "count" else MAX_SHAPES - 1)
        things = _pick_things(rng, canvas, num_things=num_things)
        turns = [ask_first(rng, things, canvas)]
        for _ in range(rng.randint(3, 7)):
            question, answer = _ask_anything(rng, things, canvas)
            if answer in ("Yes.", "No.") or all(answer != given for _, given in turns):
                turns.append((question, answer))
        return Example(task=task, turns=tuple(turns), pictures=(_draw(rng, canvas, things),))

    return make


# --- written text -----------------------------------------------------------------------------------------------


def _write(rng: random.Random, text: str) -> tuple[Picture, str]:
    """A picture with `text` somewhere in it; returns it with the name of the ink's colour."""
    canvas = _pick_canvas(rng, _IMAGE_GRIDS)
    colour = rng.choice([name for name in COLOURS if name != "yellow"])
    picture = draw_things(canvas.size, pick_background(rng), [])
    size_px = round(rng.uniform(17, 60) * canvas.scale)
    smallest_px = round(17 * canvas.scale)
    while size_px > smallest_px and text_size(text, size_px)[0] > 0.94 * canvas.width:
        size_px = max(smallest_px, round(size_px * 0.85))
    width, height = text_size(text, size_px)
    x = rng.uniform(min(0.5 * canvas.width, 0.5 * width + 3), max(0.5 * canvas.width, canvas.width - 0.5 * width - 3))
    y = rng.uniform(0.5 * height + 3, canvas.height - 0.5 * height - 3)
    marks = draw_text(picture.image, (x, y), text, size_px=size_px, rgb=pick_rgb(rng, colour), colour=colour)
    return Picture(image=picture.image, marks=marks), colour


def _make_plain(rng: random.Random) -> Example:
    canvas = _pick_canvas(rng, _IMAGE_GRIDS)
    colour = rng.choice(tuple(COLOURS))
    turns: list[Turn] = [
        (ask(rng, ph.DESCRIBE_IMAGE), f"The picture shows nothing but {colour}."),
        (ask(rng, ph.COLOUR_OF_ONLY, colour="colour"), f"It is {colour}."),
        (ask(rng, ph.COUNT, things="shapes"), _count_answer(0, "shape")),
    ]
    rng.shuffle(turns)
    return Example(task="plain", turns=tuple(turns), pictures=(draw_things(canvas.size, pick_rgb(rng, colour), []),))


def _cased(rng: random.Random, word: str) -> str:
    style = rng.random()
    return word if style < 0.5 else word.capitalize() if style < 0.75 else word.upper()


def _read_example(rng: random.Random, *, task: str, text: str, noun: str) -> Example:
    picture, colour = _write(rng, text)
    by_noun = {"word": ph.READ_WORD, "number": ph.READ_NUMBER}.get(noun, ph.READ)
    turns: list[Turn] = [(ask(rng, ph.READ if rng.random() < 0.7 else by_noun), f'It says "{text}".')]
    more: list[Turn] = [
        (ask(rng, ph.COLOUR_OF, thing=rng.choice((noun, "text")), colour="colour"), f"The text is {colour}."),
        (ask(rng, ph.DESCRIBE_IMAGE), f'The picture shows the {noun} "{text}" in {colour}.'),
        (ask(rng, ph.READ), f'It says "{text}".'),
    ]
    rng.shuffle(more)
    return Example(task=task, turns=tuple(turns + more[:2]), pictures=(picture,))


def _make_read(rng: random.Random) -> Example:
    if rng.random() < 0.6:
        return _read_example(rng, task="read", text=_cased(rng, rng.choice(WORDS)), noun="word")
    digits = rng.randint(1, 4)
    return _read_example(rng, task="read", text=str(rng.randrange(10 ** (digits - 1), 10**digits)), noun="number")


def _make_spell(rng: random.Random) -> Example:
    if rng.random() < 0.4:
        text = f"{_cased(rng, rng.choice(WORDS))} {rng.choice(WORDS)}"
    else:
        text = _cased(rng, "".join(rng.choice(GLYPHS[:26]) for _ in range(rng.randint(2, 7))))
    return _read_example(rng, task="spell", text=text, noun="text")


# --- bar charts -------------------------------------------------------------------------------------------------


def _pick_bars(rng: random.Random) -> list[Bar]:
    """3 to 5 bars with different values; alphabets and calendars keep their order."""
    labels = rng.choice(LABEL_SETS)
    num_bars = rng.randint(3, 5)
    start = rng.randint(0, len(labels) - num_bars)
    chosen = labels[start : start + num_bars] if rng.random() < 0.5 else tuple(rng.sample(labels, num_bars))
    values = rng.sample(range(1, LARGEST_BAR_VALUE + 1), num_bars)
    one_colour = rng.choice(tuple(COLOURS)) if rng.random() < 0.5 else None
    bars = []
    for label, value in zip(chosen, values, strict=True):
        colour = one_colour or rng.choice(tuple(COLOURS))
        bars.append(Bar(label=label, value=value, colour=colour, rgb=pick_rgb(rng, colour)))
    return bars


def _make_chart(rng: random.Random) -> Example:
    canvas = _pick_canvas(rng, _WIDE_GRIDS)
    bars = _pick_bars(rng)
    picture = draw_bar_chart(
        canvas.size,
        pick_background(rng),
        bars,
        text_px=round(rng.uniform(14, 17) * canvas.scale),
        ink=rng.choice(((20, 20, 20), (60, 60, 60), (30, 30, 90))),
        top_value=LARGEST_BAR_VALUE if rng.random() < 0.5 else max(bar.value for bar in bars),
    )
    largest, smallest = max(bars, key=lambda bar: bar.value), min(bars, key=lambda bar: bar.value)
    listing = joined([f"{bar.label} is {bar.value}" for bar in bars])
    key: list[Turn] = [
        (ask(rng, ph.LARGEST_BAR), f"The largest bar is {largest.label}."),
        (ask(rng, ph.SMALLEST_BAR), f"The smallest bar is {smallest.label}."),
        *((ask(rng, ph.BAR_VALUE, label=bar.label), f"{bar.label} is {bar.value}.") for bar in rng.sample(bars, 2)),
    ]
    other: list[Turn] = [
        (ask(rng, ph.COUNT_BARS), _count_answer(len(bars), "bar")),
        (ask(rng, ph.DESCRIBE_IMAGE), f"The picture shows a bar chart: {listing}."),
    ]
    kind = rng.randrange(3)
    first = key.pop(min(kind, 2))
    rest = key + other
    rng.shuffle(rest)
    return Example(task="chart", turns=(first, *rest[:4]), pictures=(picture,))


# --- clips ------------------------------------------------------------------------------------------------------


def _make_motion(rng: random.Random) -> Example:
    canvas = _pick_canvas(rng, _CLIP_GRIDS)
    num_frames = rng.choice((4, 5, 6, 7, 8, 8))
    step = rng.choice(tuple(DIRECTIONS)) if rng.random() < 0.92 else (0, 0)
    travel = tuple(sign * rng.uniform(0.35, 0.6) for sign in step)
    if step[0] == 0 and step[1] != 0:
        travel = (rng.uniform(-0.03, 0.03), travel[1])
    elif step[1] == 0 and step[0] != 0:
        travel = (travel[0], rng.uniform(-0.03, 0.03))
    side = min(canvas.size)
    colour, shape = _pick_name(rng)
    radius = rng.uniform(max(0.09 * side, 11.5 * canvas.scale), 0.17 * side)
    starts = []
    for length, share in zip(canvas.size, travel, strict=True):
        low, high = radius - min(0.0, share * length), length - radius - max(0.0, share * length)
        starts.append(rng.uniform(min(low, high), max(low, high)))
    rgb = pick_rgb(rng, colour)
    mover_path = [
        Thing(
            colour=colour,
            shape=shape,
            x=starts[0] + travel[0] * canvas.width * i / (num_frames - 1),
            y=starts[1] + travel[1] * canvas.height * i / (num_frames - 1),
            radius=radius,
            rgb=rgb,
        )
        for i in range(num_frames)
    ]
    bystander = _place_bystander(rng, canvas, mover_path) if rng.random() < 0.35 else None
    background = pick_background(rng)
    frames = tuple(
        draw_things(canvas.size, background, [thing] + ([bystander] if bystander else [])) for thing in mover_path
    )
    mover = mover_path[0]
    motion = f"moves {DIRECTIONS[step]}" if step in DIRECTIONS else "stays still"
    described = f"{with_article(mover.name).capitalize()} {motion}"
    if bystander:
        described += f" and {with_article(bystander.name)} stays still"
    reference = mover.name if bystander or rng.random() < 0.4 else rng.choice((mover.shape, "shape", "object"))
    turns: list[Turn] = [
        (ask(rng, ph.DIRECTION, thing=reference), f"The {reference} {motion}."),
        (ask(rng, ph.DESCRIBE_CLIP), f"{described}."),
    ]
    if bystander is None:
        turns.append((ask(rng, ph.COLOUR_OF_ONLY, colour="colour"), f"It is {mover.colour}."))
        turns.append((ask(rng, ph.SHAPE_OF_ONLY), f"It is {with_article(mover.shape)}."))
    else:
        turns.append((ask(rng, ph.DIRECTION, thing=bystander.name), f"The {bystander.name} stays still."))
    rest = turns[1:]
    rng.shuffle(rest)
    return Example(task="motion", turns=(turns[0], *rest), frames=frames)


def _place_bystander(rng: random.Random, canvas: _Canvas, path: list[Thing]) -> Thing | None:
    """A shape that stays still and clear of a moving one; None where no room was found."""
    colour, shape = _pick_name(rng)
    if (colour, shape) == (path[0].colour, path[0].shape):
        return None
    radius = path[0].radius * rng.uniform(0.8, 1.1)
    for _ in range(30):
        x, y = rng.uniform(radius, canvas.width - radius), rng.uniform(radius, canvas.height - radius)
        if all(((x - t.x) ** 2 + (y - t.y) ** 2) ** 0.5 > 1.1 * (radius + t.radius) for t in path):
            return Thing(colour=colour, shape=shape, x=x, y=y, radius=radius, rgb=pick_rgb(rng, colour))
    return None


# --- two pictures -----------------------------------------------------------------------------------------------


def _make_compare(rng: random.Random) -> Example:
    return _compare_counts(rng) if rng.random() < 0.4 else _compare_kinds(rng)


def _ask_nth(rng: random.Random, scenes: list[list[Thing]]) -> list[Turn]:
    return [
        (ask(rng, ph.DESCRIBE_NTH, nth=nth), f"The {nth} picture shows {joined(_group(things))}.")
        for nth, things in zip(("first", "second"), scenes, strict=True)
    ]


def _compare_counts(rng: random.Random) -> Example:
    canvases = [_pick_canvas(rng, _IMAGE_GRIDS) for _ in range(2)]
    scenes = [_pick_things(rng, canvas, num_things=rng.randint(1, MAX_SHAPES - 1)) for canvas in canvases]
    first, second = map(len, scenes)
    if first == second:
        answer = "Both pictures have the same number of shapes."
    else:
        answer = f"The {'first' if first > second else 'second'} picture has more shapes."
    turns = [(ask(rng, ph.MORE_SHAPES), answer), *_ask_nth(rng, scenes)]
    pictures = tuple(_draw(rng, canvas, things) for canvas, things in zip(canvases, scenes, strict=True))
    return Example(task="compare", turns=tuple(turns), pictures=pictures)


def _compare_kinds(rng: random.Random) -> Example:
    canvases = [_pick_canvas(rng, _IMAGE_GRIDS) for _ in range(2)]
    (colour, shape), (other_colour, other_shape) = _pick_name(rng), _pick_name(rng)
    if rng.random() < 0.45:
        other_colour = colour
    if rng.random() < 0.45:
        other_shape = shape
    scenes = [
        _place_things(rng, canvas, [name])
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
    pictures = tuple(_draw(rng, canvas, things) for canvas, things in zip(canvases, scenes, strict=True))
    return Example(task="compare", turns=(*turns, *_ask_nth(rng, scenes)), pictures=pictures)


# --- text only --------------------------------------------------------------------------------------------------


def _make_arithmetic(rng: random.Random) -> Example:
    turns = []
    for _ in range(rng.randint(3, 6)):
        a, b = rng.randint(0, LARGEST_ADDEND), rng.randint(0, LARGEST_ADDEND)
        turns.append((ask(rng, ph.SUM, a=a, b=b), f"{a} + {b} = {a + b}."))
    return Example(task="arithmetic", turns=tuple(turns))


def _make_chat(rng: random.Random) -> Example:
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


_MAKERS: dict[str, Callable[[random.Random], Example]] = {
    "describe": _shape_scene("describe", lambda rng, things, canvas: _ask_describe(rng, things)),
    "count": _shape_scene("count", lambda rng, things, canvas: _ask_count(rng, things)),
    "attribute": _shape_scene("attribute", _ask_attribute),
    "read": _make_read,
    "chart": _make_chart,
    "motion": _make_motion,
    "compare": _make_compare,
    "arithmetic": _make_arithmetic,
    "spell": _make_spell,
    "plain": _make_plain,
    "chat": _make_chat,
}
