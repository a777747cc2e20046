from __future__ import annotations

import base64
import os

import pytest

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media import load_image
from seesay.processors.sources import read_source

SERVER = MediaLimits(allow_local_paths=False)


def refusal(source: object, limits: MediaLimits | None = None) -> RequestError:
    with pytest.raises(RequestError) as raised:
        load_image(source, limits=limits or MediaLimits())
    return raised.value


def test_servers_read_no_local_paths(png_file, tmp_path):
    for source in (png_file, str(png_file), str(tmp_path / "missing.png"), "relative.png"):
        error = refusal(source, SERVER)
        assert error.code is ErrorCode.MEDIA_FORBIDDEN and "local paths are not read here" in error.message
    text = base64.b64encode(png_file.read_bytes()).decode()
    assert load_image(text, limits=SERVER).size == (60, 40)
    assert load_image(f"data:image/png;base64,{text}", limits=SERVER).size == (60, 40)


def test_file_urls_are_refused(png_file):
    for limits in (None, SERVER):
        assert refusal(f"file://{png_file}", limits).code is ErrorCode.MEDIA_FORBIDDEN
        assert refusal("FILE:///etc/passwd", limits).code is ErrorCode.MEDIA_FORBIDDEN


def test_only_regular_files(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo, "/dev/zero"):
        error = refusal(path)
        assert error.code is ErrorCode.INVALID_MEDIA and "not a regular file" in error.message
    assert "No such file" in refusal(tmp_path / "missing.png").message
    assert "does not exist" in refusal(str(tmp_path / "missing.png")).message
    assert refusal("a\0b").code is ErrorCode.INVALID_MEDIA


def test_sizes_are_checked_before_reading(tmp_path, png_file):
    sparse = tmp_path / "sparse.png"
    with sparse.open("wb") as file:
        file.truncate(10**12)
    limits = MediaLimits(max_bytes=1000)
    text = base64.b64encode(bytes(2001)).decode()
    for source in (
        sparse,
        bytes(1001),
        memoryview(bytes(1001)),
        f"data:;base64,{text}",
        "data:," + "a" * 4000,
        text * 3,
    ):
        error = refusal(source, limits)
        assert error.code is ErrorCode.MEDIA_TOO_LARGE and "MediaLimits.max_bytes" in error.message


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64,@@@@", "data:image/png;base64,AAAAA", "data:image/png;base64,é", "data:image/png;base64"],
)
def test_bad_data_urls(url):
    error = refusal(url)
    assert error.code is ErrorCode.INVALID_MEDIA and "data URL" in error.message


def test_messages_stay_short():
    secret = "c2VjcmV0" * 5000
    for source in (f"data:image/png;base64,{secret}", f"data:image/png;base64,{secret}!", secret, f"/tmp/{secret}"):
        message = refusal(source).message
        assert len(message) < 400 and "c2VjcmV0" not in message


def test_what_is_no_source():
    for source in (None, 5, {"url": "x"}, [b"x"]):
        error = refusal(source)
        assert error.code is ErrorCode.INVALID_MEDIA and type(source).__name__ in error.message


def test_words_are_not_taken_for_base64():
    assert "does not exist" in refusal("picture").message
    assert read_source(base64.b64encode(b"\x89PNGabc").decode(), SERVER) == b"\x89PNGabc"
