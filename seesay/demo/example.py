"""The parts of a scene: the conversation, its media, and the size of the canvas on which they are drawn."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

from PIL import Image

from seesay.demo.drawing import Picture
from seesay.demo.vocabulary import COLOURS, COUNT_WORDS, SHAPES, plural

CLIP_FPS = 2.0
"""Frames per second of every clip."""

CELL_PX = 28
"""Pixels per side that one visual token covers once the picture has its final size."""

IMAGE_PIXELS = (36 * CELL_PX**2, 81 * CELL_PX**2)
"""Fewest and most pixels of a picture as the model sees it."""

Turn = tuple[str, str]
"""A question and its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A conversation about pictures, one clip, or nothing. The media come with the first question."""

    task: str
    turns: tuple[Turn, ...]
    pictures: tuple[Picture, ...] = ()
    frames: tuple[Picture, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kind of each turn's question, if the maker distinguishes kinds."""
    asked: int = 0
    """The turn that is measured."""
    system: str | None = None
    """A system prompt other than the usual one."""
    media_last: bool = False
    """Whether the first question is before the media."""
    forced_start: str = ""
    """What a grammar makes every answer start with, whatever was asked; training does not teach it."""

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """The still pictures."""
        return tuple(picture.image for picture in self.pictures)

    @property
    def clip(self) -> tuple[Image.Image, ...]:
        """The frames of the clip, `CLIP_FPS` of them per second."""
        return tuple(frame.image for frame in self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """A picture's size in pixels. `scale`: how many times larger it is than the model sees it."""

    width: int
    height: int
    scale: float = 1.0

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height


def fit_size(width: int, height: int, pixels: tuple[int, int] = IMAGE_PIXELS) -> tuple[int, int]:
    """Return the size that a picture is resized to: multiples of `CELL_PX`, area within `pixels`; as Qwen2-VL does."""
    new_width, new_height = (round(side / CELL_PX) * CELL_PX for side in (width, height))
    if new_width * new_height > pixels[1]:
        shrink = math.sqrt(width * height / pixels[1])
        return (
            max(CELL_PX, math.floor(width / shrink / CELL_PX) * CELL_PX),
            max(CELL_PX, math.floor(height / shrink / CELL_PX) * CELL_PX),
        )
    if new_width * new_height < pixels[0]:
        grow = math.sqrt(pixels[0] / (width * height))
        return math.ceil(width * grow / CELL_PX) * CELL_PX, math.ceil(height * grow / CELL_PX) * CELL_PX
    return new_width, new_height


def _grids(min_cells: int, max_cells: int) -> tuple[tuple[int, int], ...]:
    """Return grids (columns, rows) of visual tokens. Nearly square ones appear more often."""
    grids = []
    for columns, rows in itertools.product(range(4, 15), repeat=2):
        aspect = max(columns, rows) / min(columns, rows)
        if min_cells <= columns * rows <= max_cells and aspect <= 2.5:
            grids += [(columns, rows)] * (4 if aspect <= 1.34 else 1)
    return tuple(grids)


IMAGE_GRIDS = _grids(36, 81)
WIDE_GRIDS = tuple((columns, rows) for columns, rows in IMAGE_GRIDS if columns >= 7 and rows >= 5)
CLIP_GRIDS = _grids(16, 36)


def pick_canvas(rng: random.Random, grids: tuple[tuple[int, int], ...]) -> Canvas:
    columns, rows = rng.choice(grids)
    scale = 1.0 if rng.random() < 0.7 else rng.uniform(0.85, 1.7)
    return Canvas(width=round(columns * CELL_PX * scale), height=round(rows * CELL_PX * scale), scale=scale)


def pick_name(rng: random.Random) -> tuple[str, str]:
    return rng.choice(tuple(COLOURS)), rng.choice(SHAPES)


def count_answer(count: int, noun: str) -> str:
    verb, noun = ("is", noun) if count == 1 else ("are", plural(noun))
    return f"There {verb} {COUNT_WORDS[count]} {noun}."
