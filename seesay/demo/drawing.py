"""Draw shapes, text and bar charts with Pillow, and record what was drawn where. Independent of questions."""

from __future__ import annotations

import functools
import io
import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from seesay.demo.vocabulary import COLOURS, RGB

Size = tuple[int, int]
Point = tuple[float, float]
Rectangle = tuple[float, float, float, float]
SUPERSAMPLING = 2
"""Supersampling factor: shapes are drawn this many times larger and averaged down, for smooth edges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """One shape; `x`, `y` (centre) and `radius` in pixels of the finished picture, `tilt` in radians."""

    colour: str
    shape: str
    x: float
    y: float
    radius: float
    rgb: RGB
    tilt: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def box(self) -> Rectangle:
        """The rectangle that the shape just fills: left, top, right, bottom, in pixels of the finished picture."""
        if self.shape in ("circle", "ring"):
            return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius
        xs, ys = zip(*_corners(self), strict=True)
        return min(xs), min(ys), max(xs), max(ys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A shape or one written character, which covers the rectangle `box` (left, top, right, bottom, in pixels)."""

    box: Rectangle
    colour: str
    shape: str = ""
    glyph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A finished RGB image, and the marks in it."""

    image: Image.Image
    marks: tuple[Mark, ...]


def pick_rgb(rng: random.Random, colour: str) -> RGB:
    """Return one of the colour's shades with a little jitter."""
    red, green, blue = rng.choice(COLOURS[colour])

    def jittered(level: int) -> int:
        return min(255, max(0, level + rng.randint(-12, 12)))

    return jittered(red), jittered(green), jittered(blue)


def pick_background(rng: random.Random) -> RGB:
    """Return white or a light tint."""
    if rng.random() < 0.3:
        return (255, 255, 255)
    return rng.randint(228, 255), rng.randint(228, 255), rng.randint(228, 255)


def _on_circle(turns: float, radius: float = 1.0) -> Point:
    angle = 2 * math.pi * turns - math.pi / 2
    return radius * math.cos(angle), radius * math.sin(angle)


def _on_heart(angle: float) -> Point:
    waves = 13 * math.cos(angle) - 5 * math.cos(2 * angle) - 2 * math.cos(3 * angle) - math.cos(4 * angle)
    return math.sin(angle) ** 3, -waves / 16


_ARM = 0.32
"""Half the width of a cross's arms."""
_OUTLINES: dict[str, tuple[Point, ...]] = {
    "square": ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
    "triangle": tuple((x * 1.1, y * 1.1 + 0.2) for x, y in map(_on_circle, (0, 1 / 3, 2 / 3))),
    "diamond": ((0, -1), (0.7, 0), (0, 1), (-0.7, 0)),
    "star": tuple(_on_circle(i / 10, 1.05 if i % 2 == 0 else 0.45) for i in range(10)),
    "cross": (
        (-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM),
        (_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM),
    ),
    "heart": tuple(_on_heart(2 * math.pi * i / 28) for i in range(28)),
}  # fmt: skip
"""The corners of shapes in the unit circle, y downwards."""


def _corners(thing: Thing) -> list[Point]:
    """Return the corners of a shape that has some, in pixels of the finished picture."""
    cos, sin = math.cos(thing.tilt) * thing.radius, math.sin(thing.tilt) * thing.radius
    return [(thing.x + a * cos - b * sin, thing.y + a * sin + b * cos) for a, b in _OUTLINES[thing.shape]]


def _draw_thing(draw: ImageDraw.ImageDraw, thing: Thing, *, outline: RGB | None) -> None:
    """Draw onto a supersampled canvas."""
    x, y, radius = (value * SUPERSAMPLING for value in (thing.x, thing.y, thing.radius))
    line_width = max(2, round(radius * 0.07)) if outline else 0
    if thing.shape in ("circle", "ring"):
        box = (x - radius, y - radius, x + radius, y + radius)
        if thing.shape == "ring":
            draw.ellipse(box, outline=thing.rgb, width=max(3, round(radius * 0.36)))
        else:
            draw.ellipse(box, fill=thing.rgb, outline=outline, width=line_width)
        return
    corners = [(x * SUPERSAMPLING, y * SUPERSAMPLING) for x, y in _corners(thing)]
    draw.polygon(corners, fill=thing.rgb, outline=outline, width=max(1, line_width))


def draw_things(size: Size, background: RGB, things: list[Thing], *, outline: RGB | None = None) -> Picture:
    """Draw `things` on an empty background of `size` (width, height) pixels."""
    canvas = Image.new("RGB", (size[0] * SUPERSAMPLING, size[1] * SUPERSAMPLING), background)
    draw = ImageDraw.Draw(canvas)
    for thing in things:
        _draw_thing(draw, thing, outline=outline)
    marks = tuple(Mark(box=t.box, colour=t.colour, shape=t.shape) for t in things)
    return Picture(image=canvas.reduce(SUPERSAMPLING), marks=marks)


@functools.lru_cache(maxsize=128)
def text_font(size_px: int) -> ImageFont.FreeTypeFont:
    """Return the font of all scenes in `size_px` pixels."""
    font = ImageFont.load_default(size_px)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("Pillow was built without FreeType, so it cannot scale its font")
    return font


@functools.lru_cache(maxsize=65536)
def text_size(text: str, size_px: int) -> tuple[float, float]:
    """Return width and height in pixels of `text` in the built-in font."""
    left, top, right, bottom = text_font(size_px).getbbox(text)
    return right - left, bottom - top


def draw_text(image: Image.Image, centre: Point, text: str, *, size_px: int, rgb: RGB, colour: str) -> tuple[Mark, ...]:
    """Write `text` into `image`, centred at `centre`. Returns a mark per character."""
    font = text_font(size_px)
    left, top, right, bottom = font.getbbox(text)
    x, y = centre[0] - (left + right) / 2, centre[1] - (top + bottom) / 2
    ImageDraw.Draw(image).text((x, y), text, font=font, fill=rgb)
    marks = []
    for i, glyph in enumerate(text):
        start, end = x + font.getlength(text[:i]), x + font.getlength(text[: i + 1])
        marks.append(Mark(box=(start, y + top, end, y + bottom), colour=colour, glyph=glyph))
    return tuple(marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One labelled bar of a chart."""

    label: str
    value: int
    colour: str
    rgb: RGB


def draw_bar_chart(size: Size, background: RGB, bars: list[Bar], *, text_px: int, ink: RGB, top_value: int) -> Picture:
    """Draw `bars` from left to right, with their values above and their labels below."""
    width, height = size
    image = Image.new("RGB", size, background)
    draw = ImageDraw.Draw(image)
    line_height = text_px + 5
    left, right = 0.04 * width, 0.96 * width
    floor, ceiling = height - line_height - 4, line_height + 4
    slot = (right - left) / len(bars)
    marks: list[Mark] = []
    for i, bar in enumerate(bars):
        centre = left + (i + 0.5) * slot
        top = floor - (floor - ceiling) * bar.value / top_value
        box = (round(centre - 0.32 * slot), round(top), round(centre + 0.32 * slot), round(floor))
        draw.rectangle(box, fill=bar.rgb)
        marks.append(Mark(box=box, colour=bar.colour))
        for y, text in ((top - line_height / 2, str(bar.value)), (floor + 3 + line_height / 2, bar.label)):
            marks += draw_text(image, (centre, y), text, size_px=text_px, rgb=ink, colour="black")
    draw.line((left, floor + 1, right, floor + 1), fill=ink, width=2)
    return Picture(image=image, marks=tuple(marks))


def as_jpeg(picture: Picture, quality: int) -> Picture:
    """Return the picture with JPEG artifacts."""
    buffer = io.BytesIO()
    picture.image.save(buffer, "JPEG", quality=quality)
    return Picture(image=Image.open(buffer).convert("RGB"), marks=picture.marks)
