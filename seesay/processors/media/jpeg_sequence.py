"""A video as base64 JPEGs, one per frame: `data:video/jpeg;base64,…,…`, as vLLM takes them."""

from __future__ import annotations

import re

from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.sources import check_num_bytes

_HEADER = re.compile(r"data:video/jpeg(?:;[^,]{0,200})?,", re.IGNORECASE)
_FEWEST_CHARS = 160
"""A JPEG has at least so many characters in base64: its quantization table alone takes 64 bytes."""


def is_jpeg_sequence(source: object) -> bool:
    """Return whether `source` is a data URL of JPEGs that are separated by commas."""
    return isinstance(source, str) and _HEADER.match(source) is not None


def split_jpegs(url: str, allowance: Allowance) -> list[str]:
    """Return a data URL for each frame. Nothing is decoded. Raises `RequestError`."""
    header, _, payload = url.partition(",")
    if not header.rstrip().lower().endswith(";base64"):
        raise RequestError(
            ErrorCode.INVALID_MEDIA, "a data URL of video/jpeg must hold base64: data:video/jpeg;base64,…"
        )
    check_num_bytes(len(payload) * 3 // 4 - 2, "the data URL", allowance.limits)
    num_frames = payload.count(",") + 1
    if num_frames * _FEWEST_CHARS > len(payload):
        message = f"the data URL has {num_frames} frames in {len(payload)} characters: that is too little for JPEGs"
        raise RequestError(ErrorCode.INVALID_MEDIA, message)
    return [f"data:image/jpeg;base64,{frame}" for frame in payload.split(",")]
