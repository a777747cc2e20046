"""Scenes of pages: three to eight lines of words and numbers that are read in order, and several pages to be counted.

Half of the words are none of any language: syllables or letters at random, so that they have to be read.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image, ImageDraw

from seesay.demo import phrasing as ph
from seesay.demo.drawing import Mark, Picture, Size, pick_rgb, text_font
from seesay.demo.example import CELL_PX, Example, Turn, count_answer, fit_size
from seesay.demo.phrasing import ask
from seesay.demo.vocabulary import COUNT_WORDS, RGB, WORDS

PAGE_LINES = (3, 8)
"""Fewest and most lines of a page that is to be read."""
MAX_PAGES = 8
SMALLEST_TEXT_PX = 15.5
LARGEST_TEXT_PX = 25.0
"""Heights of fonts on a page as the model sees it; smaller print is not taught."""
_SHEETS = ((210, 297), (210, 297), (216, 279), (1, 1), (297, 210), (4, 3), (3, 4), (100, 148))
"""Widths and heights of sheets: A4 (twice as often), US letter, square, …"""
_ONSETS = (
    "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pl", "qu", "r",
    "s", "sh", "st", "t", "tr", "v", "w", "x", "y", "z", "",
)  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ee", "ou", "ia")
_CODAS = ("", "", "", "n", "r", "s", "l", "t", "m", "k", "nd", "st", "ck", "p", "x", "ng")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
"""Capitals that do not look like digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A drawn page and its text, line by line."""

    picture: Picture
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


# --- words ------------------------------------------------------------------------------------------------------


def _invented_word(rng: random.Random) -> str:
    if rng.random() < 0.25:
        return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(2, 7)))
    syllables = rng.choice((1, 1, 2, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))


def _number(rng: random.Random) -> str:
    kind = rng.randrange(8)
    if kind == 0:
        return f"{rng.randrange(1, 1000)}.{rng.randrange(100):02}"
    if kind == 1:
        return f"{rng.randrange(24)}:{rng.randrange(60):02}"
    if kind == 2:
        return f"{rng.randint(1, 12)}/{rng.randint(1, 31)}"
    if kind == 3:
        letters = "".join(rng.choice(_CODE_LETTERS) for _ in range(rng.randint(1, 3)))
        return f"{letters}-{rng.randrange(1000)}"
    digits = rng.randint(1, 6)
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def _word(rng: random.Random) -> str:
    word = rng.choice(WORDS) if rng.random() < 0.5 else _invented_word(rng)
    style = rng.random()
    return word if style < 0.68 else word.capitalize() if style < 0.9 else word.upper()


def _words(rng: random.Random) -> Iterator[str]:
    """Yield the words of one line: those of a sentence, of an entry with a number, or any mixture."""
    kind = rng.random()
    if kind < 0.15:
        yield rng.choice(("-", f"{rng.randint(1, 9)}.", f"{rng.randint(10, 99)}:"))
    if kind > 0.75:
        yield _word(rng).capitalize()
        yield _number(rng)
    share_of_numbers = rng.choice((0.0, 0.2, 0.2, 0.6))
    while True:
        yield (_number if rng.random() < share_of_numbers else _word)(rng) + (
            rng.choice((",", ",", ".", ":", "?", "!")) if rng.random() < 0.12 else ""
        )


@functools.lru_cache(maxsize=8192)
def _advance(character: str, text_px: int) -> float:
    return text_font(text_px).getlength(character)


def _width(text: str, text_px: int) -> float:
    """Return the width of `text` in pixels, kerning aside."""
    return sum(_advance(character, text_px) for character in text)


def _line(rng: random.Random, *, text_px: int, room: float) -> str:
    """Return the words of a line that is at most `room` pixels wide, and mostly shorter."""
    wanted = room * rng.choice((0.3, 0.5, 0.7, 0.9, 1.0, 1.0))
    line = ""
    for word in itertools.islice(_words(rng), 8):
        longer = f"{line} {word}" if line else word
        if _width(longer, text_px) > (wanted if line else room):
            break
        line = longer
    return line or str(rng.randrange(100))


# --- pages ------------------------------------------------------------------------------------------------------


def pick_sheet(rng: random.Random) -> Size:
    """Return the size in pixels of a page's picture: near the size at which it is seen, now and then much larger."""
    width, height = rng.choice(_SHEETS)
    area = rng.uniform(60, 81) * CELL_PX**2
    scale = (area / (width * height)) ** 0.5
    scale *= 1.0 if rng.random() < 0.5 else rng.uniform(1.0, 2.2) if rng.random() < 0.85 else rng.uniform(2.2, 4.5)
    return round(width * scale), round(height * scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where the lines of a page go, in pixels of its picture."""

    text_px: int
    pitch: float
    left: float
    top: float
    room: float
    align: str


def _lay_out(rng: random.Random, size: Size, num_lines: int) -> _Layout:
    """Return a layout for at most `num_lines` lines: every one of them has room."""
    seen = fit_size(*size)
    scale = min(size[0] / seen[0], size[1] / seen[1])
    width, height = size
    margin_x, margin_y = rng.uniform(0.03, 0.09) * width, rng.uniform(0.03, 0.08) * height
    tallest = (height - 2 * margin_y) / num_lines / 1.2 / scale
    text_px = max(1, round(min(rng.uniform(SMALLEST_TEXT_PX, LARGEST_TEXT_PX), max(SMALLEST_TEXT_PX, tallest)) * scale))
    densest, loosest = 1.2 * text_px, (height - 2 * margin_y) / num_lines
    pitch = rng.uniform(densest, max(densest, min(loosest, 2.6 * text_px)))
    spare = height - 2 * margin_y - num_lines * pitch
    top = margin_y + max(0.0, spare) * rng.choice((0.0, 0.0, 0.0, rng.random()))
    align = rng.choice(("left",) * 6 + ("centre", "ends", "indent"))
    return _Layout(text_px=text_px, pitch=pitch, left=margin_x, top=top, room=width - 2 * margin_x, align=align)


def draw_page(rng: random.Random, *, num_lines: int, size: Size | None = None) -> Page:
    """Draw a page with `num_lines` lines of text, of `size` pixels or of a sheet's."""
    size = size or pick_sheet(rng)
    layout = _lay_out(rng, size, num_lines)
    paper = (255, 255, 255) if rng.random() < 0.6 else _light(rng)
    image = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(image)
    colour = "black" if rng.random() < 0.75 else rng.choice(("blue", "red", "green", "purple", "brown", "gray"))
    ink = pick_rgb(rng, colour)
    if rng.random() < 0.12:
        _draw_rules(draw, size, layout, num_lines)
    lines: list[str] = []
    marks: list[Mark] = []
    for number in range(num_lines):
        text = _line(rng, text_px=layout.text_px, room=layout.room)
        y = layout.top + number * layout.pitch
        for x, part in _places(rng, layout, text):
            draw.text((x, y), part, font=text_font(layout.text_px), fill=ink)
            marks += _marks_of(part, x, y, layout.text_px, colour)
        lines.append(text)
    return Page(picture=Picture(image=image, marks=tuple(marks)), lines=tuple(lines))


def _light(rng: random.Random) -> RGB:
    return rng.randint(235, 255), rng.randint(235, 255), rng.randint(228, 255)


def _draw_rules(draw: ImageDraw.ImageDraw, size: Size, layout: _Layout, num_lines: int) -> None:
    """Draw the pale lines of a writing pad."""
    for number in range(num_lines):
        y = layout.top + number * layout.pitch + 1.12 * layout.text_px
        draw.line((0.02 * size[0], y, 0.98 * size[0], y), fill=(200, 212, 230), width=max(1, layout.text_px // 16))


def _places(rng: random.Random, layout: _Layout, text: str) -> Iterator[tuple[float, str]]:
    """Yield (left edge, text) of the parts of a line. A line that goes to both ends has its last word at the right."""
    spare = layout.room - _width(text, layout.text_px)
    first, _, last = text.rpartition(" ")
    if layout.align == "ends" and first and spare > 0:
        yield layout.left, first
        yield layout.left + layout.room - _width(last, layout.text_px), last
        return
    shift = {"centre": 0.5, "indent": rng.choice((0.0, 0.5)) * rng.random()}.get(layout.align, 0.0)
    yield layout.left + max(0.0, spare) * shift, text


def _marks_of(text: str, x: float, y: float, text_px: int, colour: str) -> Iterator[Mark]:
    """Yield a mark for each character."""
    ends = itertools.accumulate((_advance(glyph, text_px) for glyph in text), initial=x)
    for glyph, (start, end) in zip(text, itertools.pairwise(ends), strict=True):
        if glyph != " ":
            yield Mark(box=(start, y + 0.2 * text_px, end, y + 1.0 * text_px), colour=colour, glyph=glyph)


def lines_answer(count: int) -> str:
    return f"It is a page of {COUNT_WORDS[count]} line{'s' * (count > 1)}."


def draw_pages(rng: random.Random, num_pages: int) -> list[Page]:
    """Draw the pages of one document, mostly of one size."""
    size = pick_sheet(rng) if rng.random() < 0.7 else None
    return [draw_page(rng, num_lines=rng.randint(2, PAGE_LINES[1]), size=size) for _ in range(num_pages)]


def pick_num_pages(rng: random.Random) -> int:
    """Return a number of pages, the smaller ones more often."""
    return rng.choice((1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 6, 7, 8))


def make_page(rng: random.Random) -> Example:
    page = draw_page(rng, num_lines=rng.randint(*PAGE_LINES))
    turns: list[Turn] = [(ask(rng, ph.READ_PAGE), page.text)]
    if rng.random() < 0.3:
        turns.append((ask(rng, ph.COUNT_LINES), count_answer(len(page.lines), "line")))
    return Example(task="page", turns=tuple(turns), pictures=(page.picture,))


def make_count_pages(rng: random.Random) -> Example:
    num_pages = rng.randint(1, MAX_PAGES)
    pages = draw_pages(rng, num_pages)
    turns = ((ask(rng, ph.COUNT_PAGES), count_answer(num_pages, "page")),)
    return Example(task="count_pages", turns=turns, pictures=tuple(page.picture for page in pages))
