"""Thumbnails of pictures as the model received them, with the grid of tiles or tokens, and of uploaded files."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from seesay.ui.conversation import is_audio, is_document, is_video

_MAX_SIDE_PX = 320
_MIN_CELL_PX = 5
_MAX_PIXELS = 100_000_000


def make_address(path: str) -> str:
    """Return the URL of a file on the page's own server, relative to the page."""
    return f"gradio_api/file={quote(path)}"


def make_link(path: str) -> str:
    """Return HTML of a document: its name, which opens it."""
    name = escape(Path(path).name)
    return f'<a class="seesay-document" href="{make_address(path)}" target="_blank" rel="noopener">{name}</a>'


def make_player(path: str) -> str:
    """Return HTML of audio: its name, and what plays it."""
    name = escape(Path(path).name)
    return (
        f'<figure class="seesay-audio"><figcaption title="{name}">{name}</figcaption>'
        f'<audio src="{make_address(path)}" aria-label="{name}" controls preload="metadata"></audio></figure>'
    )


def make_reference(path: str) -> str:
    """Return HTML of a picture, video or audio as it was uploaded. The browser loads it when it becomes visible."""
    name = escape(Path(path).name)
    if is_document(path):
        return make_link(path)
    if is_audio(path):
        return make_player(path)
    if is_video(path):
        return (
            f'<video src="{make_address(path)}" aria-label="{name}" muted playsinline controls preload="none"></video>'
        )
    return f'<img alt="" src="{make_address(path)}" loading="lazy">'


def make_thumbnail(path: str, report: Mapping[str, object]) -> str:
    """Return HTML of a picture with its grid, or of another file. Empty if the file does not exist or cannot be
    read here."""
    if is_video(path) or is_audio(path) or is_document(path):
        return make_reference(path)
    try:
        content = _draw(path, report)
    except Exception:  # the server has read the file, so the answer is valid without a thumbnail
        return ""
    return f'<img alt="" src="data:image/webp;base64,{base64.b64encode(content).decode()}">'


def _draw(path: str, report: Mapping[str, Any]) -> bytes:
    from PIL import Image, ImageDraw, ImageOps

    width, height = report["resized_width"], report["resized_height"]
    with Image.open(path) as opened:
        if opened.width * opened.height > _MAX_PIXELS:
            raise ValueError(f"pictures may have {_MAX_PIXELS} pixels, got {opened.width} x {opened.height}")
        opened.draft("RGB", (width, height))
        picture = ImageOps.exif_transpose(opened).convert("RGBA")
    stretch = (width / height) / (picture.width / picture.height)
    # If the aspect ratio is kept, the picture was resized; if it was cut into tiles, it was stretched; else cropped.
    is_known = report["num_tiles"] > 1 or 0.85 < stretch < 1.18
    if not is_known:
        width, height = picture.size
    scale = min(1.0, _MAX_SIDE_PX / max(width, height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    picture = picture.resize(size)
    flat = Image.new("RGBA", size, "white")
    flat.alpha_composite(picture)
    cell = find_cell(report) if is_known else None
    if cell is not None and cell * scale >= _MIN_CELL_PX:
        grid = Image.new("RGBA", size)
        pen = ImageDraw.Draw(grid)
        for x in range(cell, width, cell):
            pen.line([(x * scale, 0), (x * scale, size[1])], fill=(90, 90, 110, 70))
        for y in range(cell, height, cell):
            pen.line([(0, y * scale), (size[0], y * scale)], fill=(90, 90, 110, 70))
        flat.alpha_composite(grid)
    file = io.BytesIO()
    flat.convert("RGB").save(file, "WEBP", quality=80)
    return file.getvalue()


def find_cell(report: Mapping[str, Any]) -> int | None:
    """Return the side in pixels of the squares of the grid: the tiles, or else the area of one token."""
    area = report["resized_width"] * report["resized_height"]
    num_tiles, num_tokens = report["num_tiles"], report["num_tokens"]
    for number in (num_tiles, num_tiles - 1) if num_tiles > 1 else (num_tokens,):
        side = math.isqrt(area // number) if number > 0 else 0
        if (
            side
            and side * side * number == area
            and not (report["resized_width"] % side or report["resized_height"] % side)
        ):
            return side
    return None
