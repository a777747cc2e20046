"""Coordinates of answers beside what models see: right within a pixel of the picture that the user gave, through turns
of EXIF, resizing, padding and tiles."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from seesay import pipeline
from seesay.config import EngineConfig, GenerationConfig
from seesay.engine.front.response import Response
from seesay.processors.media.images import resize
from seesay.values import MediaReport, MediaSize, Modality
from seesay.values.frame_chain import Resize

BOX = (23.0, 15.0, 97.0, 61.0)
SIZES = [(133, 75), (75, 133), (200, 64)]
"""Width and height, upright. No side is a multiple of a patch."""

Write = Callable[[list[float]], str]


def scaled(values: list[float], scale: float) -> list[int]:
    return [round(value * scale) for value in values]


def write_locations(box: list[float]) -> str:
    left, top, right, bottom = scaled(box, 1024)
    return "".join(f"<loc{value:04d}>" for value in (top, left, bottom, right)) + " thing"


def write_points(box: list[float]) -> str:
    left, top, right, bottom = (100 * value for value in box)
    return f'<points x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}" alt="thing">thing</points>'


FORMATS: dict[str, Write] = {
    "qwen3_vl": lambda box: f'[{{"bbox_2d": {scaled(box, 1000)}, "label": "thing"}}]',
    "glm4v": lambda box: f"thing <|begin_of_box|>[{scaled(box, 1000)}]<|end_of_box|>",
    "qwen2_vl": lambda box: "<ref>thing</ref><box>({},{}),({},{})</box>".format(*scaled(box, 1000)),
    "internvl": lambda box: f"<ref>thing</ref><box>[{scaled(box, 1000)}]</box>",
    "deepseek_vl2": lambda box: f"<|ref|>thing<|/ref|><|det|>[{scaled(box, 999)}]<|/det|>",
    "paligemma": write_locations,
    "molmo": write_points,
}
"""Answers with a box in fractions of the picture's sides, by the model that writes so."""


def make_file(width: int, height: int) -> bytes:
    """Return a picture with a red rectangle at `BOX` that lies on its side, which its EXIF turns upright."""
    upright = Image.new("RGB", (width, height), "white")
    left, top, right, bottom = BOX
    ImageDraw.Draw(upright).rectangle((left, top, right - 1, bottom - 1), fill="red")
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
    return file.getvalue()


def corners(response: Response) -> list[float]:
    if response.points:
        one, two = response.points
        return [one.x, one.y, two.x, two.y]
    [box] = response.boxes
    return [box.left, box.top, box.right, box.bottom]


def clip(width: int, height: int) -> list[float]:
    return [min(value, side) for value, side in zip(BOX, (width, height) * 2)]


def find_red(pixels: np.ndarray) -> list[float]:
    """Return the edges of what is red, to a fraction of a pixel: a row that is half red counts half."""
    red = (255 - pixels[..., 1].astype(float)) / 255
    found = []
    for axis in (0, 1):
        line = red.max(axis=axis)
        inside = np.flatnonzero(line > 0.5)
        first, last = inside[0], inside[-1]
        found.append((first + 1 - line[first] if line[first] < 1 else float(first), last + line[last]))
    (left, right), (top, bottom) = found
    return [left, top, right, bottom]


@pytest.mark.parametrize("name", [*FORMATS, "qwen2_5_vl"])
def test_boxes_are_right_within_a_pixel(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", engine_process=False)
    with pipeline(str(tiny_checkpoint(name)), backend_config=config) as pipe:
        for width, height in SIZES:
            answer = pipe(("find it", make_file(width, height)), gen_config=GenerationConfig(max_new_tokens=1))
            [report] = answer.media
            assert (report.width, report.height) == (width, height), "the picture stands upright"
            expected = clip(width, height)
            if name in FORMATS:
                fractions = [value / side for value, side in zip(expected, (width, height) * 2)]
                text = FORMATS[name](fractions)
            else:
                text = write_seen(pipe.engine.family, report, make_file(width, height))
            found = corners(Response(text=text, media=(report,)))
            assert found == pytest.approx(expected, abs=1.0), (text, found)


def write_seen(family: object, report: MediaReport, file: bytes) -> str:
    """Return a box in pixels of what a Qwen2.5-VL sees, as it is found there."""
    from seesay import load_image

    frames = np.asarray(load_image(file))[None]
    size = MediaSize(num_frames=1, height=report.height, width=report.width)
    measures = family.measure(Modality.IMAGE, size, {})  # type: ignore[attr-defined]
    [chain] = family.chain_frames(Modality.IMAGE, size, measures)  # type: ignore[attr-defined]
    [step] = [step for step in chain if isinstance(step, Resize)]
    assert step.size == (report.resized_height, report.resized_width), "the report has what the tower gets"
    seen = resize(frames, step.size, resample=step.resample, library=step.library)[0]
    return f'[{{"bbox_2d": {[round(value) for value in find_red(seen)]}, "label": "thing"}}]'
