"""Bounds the chunks of a PNG: Pillow reads each of them in Python, so that a small file of many takes seconds."""

from __future__ import annotations

from seesay.errors import ErrorCode, RequestError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MAX_METADATA = 2048
"""Most chunks that hold no pixels. Cameras and editors write a few dozen."""
_LEAST_BYTES = 512
"""Chunks of pixels are larger on average; libpng writes 8 KiB."""
_FRAME = 12  # length, type and checksum
_IS_METADATA = 0x20


def check_chunks(data: bytes, name: str) -> None:
    """Raise `RequestError` for a PNG of too many chunks. What else is wrong with it is found by the decoder."""
    at, num_chunks, num_metadata = len(PNG_SIGNATURE), 0, 0
    most = _MAX_METADATA + len(data) // _LEAST_BYTES
    while at + _FRAME <= len(data):
        num_chunks += 1
        num_metadata += bool(data[at + 4] & _IS_METADATA)
        if num_metadata > _MAX_METADATA or num_chunks > most:
            message = f"{name} is a PNG of too many chunks: at most {_MAX_METADATA} of metadata are read"
            raise RequestError(ErrorCode.INVALID_MEDIA, message)
        at += _FRAME + int.from_bytes(data[at : at + 4], "big")
