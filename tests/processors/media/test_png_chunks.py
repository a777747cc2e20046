"""PNG files of many chunks: refused at once, however small they are."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from cpu_time import measure_cpu_s
from PIL import Image

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.picture import Picture


def make_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def make_png(extra: bytes, *, at_end: bool = False) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), (1, 2, 3)).save(file, "PNG")
    data = file.getvalue()
    at = len(data) - 12 if at_end else 33  # before IEND, or behind IHDR
    return data[:at] + extra + data[at:]


@pytest.mark.parametrize("at_end", [False, True], ids=["before the pixels", "behind the pixels"])
@pytest.mark.parametrize("kind", [b"tEXt", b"iTXt", b"IDAT", b"prVt"])
def test_a_png_of_very_many_chunks_is_refused_at_once(kind: bytes, at_end: bool) -> None:
    text = b"k\0\0\0\0\0v" if kind == b"iTXt" else b"" if kind == b"IDAT" else b"k\0v"
    data = make_png(make_chunk(kind, text) * 200_000, at_end=at_end)

    def read() -> None:
        with pytest.raises(RequestError, match="a PNG of too many chunks") as raised:
            Picture(data, limits=MediaLimits(), name="messages[0]").size()
        assert raised.value.code is ErrorCode.INVALID_MEDIA

    assert measure_cpu_s(read) < 0.05


def test_a_thousand_texts_are_fine() -> None:
    data = make_png(make_chunk(b"tEXt", b"k\0v") * 1000)
    assert Picture(data, limits=MediaLimits(), name="it").pixels().shape == (10, 20, 3)
