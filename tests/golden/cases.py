"""Conversations that the published code and seesay answer: a question in each of the ways that differ between models.

Needs numpy, Pillow and the formulas alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from golden.formula import draw_picture
from PIL import Image

NUM_TOKENS = 8
"""Greedy tokens of each answer."""


@dataclass(frozen=True)
class Picture:
    """A picture of the formula: its size in pixels and its number. `mode` is Pillow's: RGB or RGBA."""

    height: int
    width: int
    number: int = 0
    mode: str = "RGB"

    def draw(self) -> Image.Image:
        """Return the picture in its mode."""
        return Image.fromarray(draw_picture(self.height, self.width, self.number, channels=len(self.mode)), self.mode)


@dataclass(frozen=True)
class Turn:
    """A question, the pictures (or the frames of one video) before it, and the answer that was given to it; None: it
    is to be answered."""

    question: str
    pictures: tuple[Picture, ...] = ()
    is_video: bool = False
    answer: str | None = None


@dataclass(frozen=True)
class Case:
    """A conversation, whose last turn is to be answered. `options`: those of each picture, by their seesay names."""

    name: str
    turns: tuple[Turn, ...]
    options: tuple[tuple[str, object], ...] = ()

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in their order."""
        return tuple(picture for turn in self.turns for picture in turn.pictures)


_ASK = "What is in the picture?"
SIZES = ((64, 64), (37, 91), (150, 50), (9, 200), (333, 222))
"""Heights and widths of the five sizes: square, odd, tall, a strip, and larger than a tiny tower."""

TEXT = Case("text", (Turn("Name the first three planets, please."),))
FIVE_SIZES = tuple(Case(f"{h}x{w}", (Turn(_ASK, (Picture(h, w, n),)),)) for n, (h, w) in enumerate(SIZES))
THIN = tuple(
    Case(f"{h}x{w}", (Turn(_ASK, (Picture(h, w, n),)),))
    for n, (h, w) in enumerate(((2, 90), (60, 1), (15, 700), (2000, 30)), start=20)
)
ALPHA = Case("alpha", (Turn(_ASK, (Picture(60, 80, 5, "RGBA"),)),))
ALPHA_DROPPED = Case("alpha_dropped", ALPHA.turns, options=(("transparency", "drop"),))
TWO_PICTURES = Case("two_pictures", (Turn("Which one is larger?", (Picture(60, 80, 6), Picture(120, 70, 7))),))
TWO_TURNS = Case(
    "two_turns",
    (Turn(_ASK, (Picture(60, 80, 8),), answer="Waves of three colours."), Turn("And what is behind them?")),
)
PICTURE_IN_SECOND_TURN = Case(
    "picture_in_second_turn",
    (Turn("Can you see pictures?", answer="Yes, I can."), Turn(_ASK, (Picture(60, 80, 9),))),
)
VIDEO = Case("video", (Turn("What moves?", tuple(Picture(60, 80, n) for n in range(10, 14)), is_video=True),))
_FRAMES = tuple(Picture(60, 80, n) for n in range(10, 14))
VIDEO_AT_TWO_FPS = Case("video_at_two_fps", (Turn("What moves?", _FRAMES, is_video=True),), (("sample_fps", 2),))
PACKED_VIDEO = Case(
    "packed_video",
    (Turn("What moves?", _FRAMES, is_video=True),),
    (("sample_fps", 2), ("force_packing", 3)),
)
VIDEO_OF_LARGE_FRAMES = Case(
    "video_of_large_frames",
    (Turn("What moves?", (Picture(130, 170, 14), Picture(130, 170, 15)), is_video=True),),
)
_NUMBERS = "Read the numbers: " + " ".join(map(str, range(900, 1950)))
BEYOND_4096 = Case("beyond_4096", (Turn(_NUMBERS[:4200]),))
GROWS_BEYOND_4096 = Case("grows_beyond_4096", (Turn(_NUMBERS[:4086]),))
"""Prompts in bytes for models with other rotary positions beyond 4,096: the second begins with fewer."""

STANDARD = (TEXT, *FIVE_SIZES, ALPHA, TWO_PICTURES, TWO_TURNS)
"""What every family with pictures is asked."""
TEXT_ONLY = (TEXT, Case("text_two_turns", (Turn("One?", answer="Two."), Turn("Three?"))))
LONG = (BEYOND_4096, GROWS_BEYOND_4096)
VIDEOS = (VIDEO, VIDEO_AT_TWO_FPS, PACKED_VIDEO, VIDEO_OF_LARGE_FRAMES)
_OTHERS = (ALPHA_DROPPED, PICTURE_IN_SECOND_TURN, *THIN, *VIDEOS, *LONG)
CASES = {case.name: case for case in (*STANDARD, *TEXT_ONLY, *_OTHERS)}
"""All cases by name. A case that one model alone needs is added here, too."""
