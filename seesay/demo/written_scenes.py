"""Scenes of written words and numbers, of bar charts, and of nothing but a colour."""

from __future__ import annotations

import random

from seesay.demo import phrasing as ph
from seesay.demo.drawing import (
    Bar,
    Picture,
    draw_bar_chart,
    draw_text,
    draw_things,
    pick_background,
    pick_rgb,
    text_size,
)
from seesay.demo.example import IMAGE_GRIDS, WIDE_GRIDS, Example, Turn, count_answer, pick_canvas
from seesay.demo.phrasing import ask
from seesay.demo.vocabulary import COLOURS, GLYPHS, LABEL_SETS, LARGEST_BAR_VALUE, WORDS, joined


def write(rng: random.Random, text: str) -> tuple[Picture, str]:
    """Return (a picture with `text` somewhere in it, the name of the ink's colour)."""
    canvas = pick_canvas(rng, IMAGE_GRIDS)
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


def make_plain(rng: random.Random) -> Example:
    canvas = pick_canvas(rng, IMAGE_GRIDS)
    colour = rng.choice(tuple(COLOURS))
    turns: list[Turn] = [
        (ask(rng, ph.DESCRIBE_IMAGE), f"The picture shows nothing but {colour}."),
        (ask(rng, ph.COLOUR_OF_ONLY, colour="colour"), f"It is {colour}."),
        (ask(rng, ph.COUNT, things="shapes"), count_answer(0, "shape")),
    ]
    rng.shuffle(turns)
    return Example(task="plain", turns=tuple(turns), pictures=(draw_things(canvas.size, pick_rgb(rng, colour), []),))


def _cased(rng: random.Random, word: str) -> str:
    style = rng.random()
    return word if style < 0.5 else word.capitalize() if style < 0.75 else word.upper()


def _read_example(rng: random.Random, *, task: str, text: str, noun: str) -> Example:
    picture, colour = write(rng, text)
    by_noun = {"word": ph.READ_WORD, "number": ph.READ_NUMBER}.get(noun, ph.READ)
    turns: list[Turn] = [(ask(rng, ph.READ if rng.random() < 0.7 else by_noun), f'It says "{text}".')]
    more: list[Turn] = [
        (ask(rng, ph.COLOUR_OF, thing=rng.choice((noun, "text")), colour="colour"), f"The text is {colour}."),
        (ask(rng, ph.DESCRIBE_IMAGE), f'The picture shows the {noun} "{text}" in {colour}.'),
        (ask(rng, ph.READ), f'It says "{text}".'),
    ]
    rng.shuffle(more)
    return Example(task=task, turns=tuple(turns + more[:2]), pictures=(picture,))


def pick_written(rng: random.Random) -> tuple[str, str]:
    """Return (a text to write, what it is called: a word or a number)."""
    if rng.random() < 0.6:
        return _cased(rng, rng.choice(WORDS)), "word"
    digits = rng.randint(1, 4)
    return str(rng.randrange(10 ** (digits - 1), 10**digits)), "number"


def _pick_letters(rng: random.Random) -> str:
    if rng.random() < 0.4:
        return f"{_cased(rng, rng.choice(WORDS))} {rng.choice(WORDS)}"
    return _cased(rng, "".join(rng.choice(GLYPHS[:26]) for _ in range(rng.randint(2, 7))))


def make_read(rng: random.Random) -> Example:
    text, noun = pick_written(rng)
    return _read_example(rng, task="read", text=text, noun=noun)


def make_spell(rng: random.Random) -> Example:
    return _read_example(rng, task="spell", text=_pick_letters(rng), noun="text")


def _pick_bars(rng: random.Random) -> list[Bar]:
    """Return 3 to 5 bars with different values. Alphabets and calendars keep their order."""
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


def draw_chart(rng: random.Random) -> tuple[Picture, list[Bar]]:
    """Return a bar chart and its bars from left to right."""
    canvas = pick_canvas(rng, WIDE_GRIDS)
    bars = _pick_bars(rng)
    picture = draw_bar_chart(
        canvas.size,
        pick_background(rng),
        bars,
        text_px=round(rng.uniform(14, 17) * canvas.scale),
        ink=rng.choice(((20, 20, 20), (60, 60, 60), (30, 30, 90))),
        top_value=LARGEST_BAR_VALUE if rng.random() < 0.5 else max(bar.value for bar in bars),
    )
    return picture, bars


def make_chart(rng: random.Random) -> Example:
    picture, bars = draw_chart(rng)
    largest, smallest = max(bars, key=lambda bar: bar.value), min(bars, key=lambda bar: bar.value)
    listing = joined([f"{bar.label} is {bar.value}" for bar in bars])
    key: list[Turn] = [
        (ask(rng, ph.LARGEST_BAR), f"The largest bar is {largest.label}."),
        (ask(rng, ph.SMALLEST_BAR), f"The smallest bar is {smallest.label}."),
        *((ask(rng, ph.BAR_VALUE, label=bar.label), f"{bar.label} is {bar.value}.") for bar in rng.sample(bars, 2)),
    ]
    other: list[Turn] = [
        (ask(rng, ph.COUNT_BARS), count_answer(len(bars), "bar")),
        (ask(rng, ph.DESCRIBE_IMAGE), f"The picture shows a bar chart: {listing}."),
    ]
    kind = rng.randrange(3)
    first = key.pop(min(kind, 2))
    rest = key + other
    rng.shuffle(rest)
    return Example(task="chart", turns=(first, *rest[:4]), pictures=(picture,))
