"""Opened media as files: as they came, or as a PNG of the same pixels."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from seesay.config import MediaLimits
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.document import open_document
from seesay.processors.media.media_file import as_file
from seesay.processors.media.open import open_picture, open_video
from seesay.processors.media.video.frame_sampling import FrameSampling
from seesay.values import DocumentOptions

PIXELS = np.random.default_rng(4).integers(0, 256, (9, 12, 3), dtype=np.uint8)


def allowance() -> Allowance:
    return Allowance(MediaLimits())


def write(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(content: bytes | Path | None) -> npt.NDArray[np.uint8]:
    assert isinstance(content, bytes)
    return np.asarray(Image.open(io.BytesIO(content)))


def test_a_file_is_itself() -> None:
    content = write(Image.fromarray(PIXELS), "JPEG")
    assert as_file(open_picture(content, allowance(), transparency="white")) == content


def test_pixels_are_a_png_as_they_are_seen() -> None:
    """Also those of an image that is turned by its orientation, and partly transparent."""
    assert (read(as_file(open_picture(PIXELS, allowance(), transparency="white"))) == PIXELS).all()
    image = Image.fromarray(np.dstack([PIXELS, np.full(PIXELS.shape[:2], 90, np.uint8)]), "RGBA")
    image.getexif()[0x0112] = 6
    opened = open_picture(image, allowance(), transparency="white")
    seen = opened.decode().frames[0]
    assert (read(as_file(opened)) == seen).all() and seen.shape == (12, 9, 3)


def test_a_page_is_a_png() -> None:
    pages = [Image.fromarray(PIXELS), Image.fromarray(PIXELS[::-1])]
    content = write(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    second = open_document(content, DocumentOptions.checked({}), allowance()).pages[1]
    assert (read(as_file(second)) == second.decode().frames[0]).all()


def test_a_video_is_its_file_and_frames_are_none(tmp_path: Path) -> None:
    """Nothing of it is read before it is decoded."""
    path = tmp_path / "video.mp4"
    path.write_bytes(b"\0\0\0\x18ftypmp42")
    sampling = FrameSampling.checked(limit=8)
    for source in (path, path.read_bytes()):
        assert as_file(open_video(source, sampling, allowance(), transparency="white")) == source
    assert as_file(open_video([PIXELS, PIXELS], sampling, allowance(), transparency="white")) is None
