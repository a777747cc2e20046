"""Draws the time of each frame of a video into its corner."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

_HEIGHT, _OUTLINE = 0.1, 0.1
"""Of the letters in the shorter side of a frame, and of their outline in these."""


def draw_times(frames: npt.NDArray[np.uint8], times_s: Sequence[float], font: bytes) -> npt.NDArray[np.uint8]:
    """Return a copy of frames uint8 [N, H, W, 3] with "time: 00:00:01.50" of each in black letters with a white
    outline; or the frames themselves where letters would have no pixel. font: a file that FreeType reads."""
    height, width = frames.shape[1:3]
    if not (size := int(min(height, width) * _HEIGHT)):
        return frames
    letters = ImageFont.truetype(BytesIO(font), size)
    drawn = np.empty_like(frames)
    for frame, time_s, place in zip(frames, times_s, drawn, strict=True):
        picture = Image.fromarray(frame)
        ImageDraw.Draw(picture).text(
            (0, 0),
            spell_time(time_s),
            font=letters,
            fill=(0, 0, 0),
            stroke_width=int(size * _OUTLINE),
            stroke_fill=(255, 255, 255),
        )
        place[...] = np.asarray(picture)
    return drawn


def spell_time(time_s: float) -> str:
    """Return "time: hours:minutes:seconds", the seconds with hundredths."""
    hours, rest = divmod(time_s, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"time: {int(hours):02d}:{int(minutes):02d}:{seconds:05.2f}"


def check_font(font: bytes) -> None:
    """Raise OSError for a file that FreeType cannot read."""
    ImageFont.truetype(BytesIO(font), 1)
