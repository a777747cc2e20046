from __future__ import annotations

import base64
import io
import os
import random
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
import torch

from seesay.config import MediaLimits
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.processors.media import sources
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.load import load_image, load_video
from seesay.processors.media.sources import read_source

SERVER = MediaLimits(allow_local_paths=False)


def refusal(source: object, limits: MediaLimits | None = None) -> RequestError:
    with pytest.raises(RequestError) as raised:
        load_image(source, limits=limits or MediaLimits())
    return raised.value


def test_servers_read_no_local_paths(png_file: Path, tmp_path: Path) -> None:
    for source in (png_file, str(png_file), str(tmp_path / "missing.png"), "relative.png"):
        error = refusal(source, SERVER)
        assert error.code is ErrorCode.MEDIA_FORBIDDEN and "local paths are not read here" in error.message
    text = base64.b64encode(png_file.read_bytes()).decode()
    assert load_image(text, limits=SERVER).size == (60, 40)
    assert load_image(f"data:image/png;base64,{text}", limits=SERVER).size == (60, 40)


def test_file_urls_follow_the_rules_of_paths(png_file: Path) -> None:
    spaced = png_file.with_name("a b%.png")
    spaced.write_bytes(png_file.read_bytes())
    for url in (f"file://{png_file}", f"FILE://localhost{png_file}", spaced.as_uri()):
        assert load_image(url).size == (60, 40)
        assert refusal(url, SERVER).code is ErrorCode.MEDIA_FORBIDDEN
    for url in ("file:///etc/passwd", "file:/etc/shadow", "FILE:///nowhere"):
        error = refusal(url, SERVER)
        assert error.code is ErrorCode.MEDIA_FORBIDDEN and "local paths are not read here" in error.message
    for url in ("file:x.png", "file://", "file://[x"):
        assert "must have the form file:///path/to/file" in refusal(url).message
    for url in ("file://elsewhere/x.png", "FILE://elsewhere/x.png", "file://elsewhere"):
        message = refusal(url).message
        assert "the host of a file URL must be empty or localhost, got 'elsewhere'" in message


# --- a folder that confines local files ----------------------------------------------------------------------------


@pytest.fixture
def confined(tmp_path: Path, png_file: Path) -> Any:
    """Limits to a folder that holds a picture, links that stay in and links that lead out; the folder itself."""
    folder = tmp_path / "media"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "in.png").write_bytes(png_file.read_bytes())
    (folder / "link.png").symlink_to(folder / "deep" / "in.png")
    (folder / "out.png").symlink_to(png_file)
    (folder / "outside").symlink_to(png_file.parent)
    (folder / "loop").symlink_to(folder / "loop")
    (tmp_path / "media-too").mkdir()
    (tmp_path / "media-too" / "near.png").write_bytes(png_file.read_bytes())
    return folder, MediaLimits(allow_local_paths=False, allowed_local_media_path=str(folder))


def test_files_in_the_folder_are_read(confined: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, limits = confined
    for name in ("deep/in.png", "link.png", "deep/../link.png", "../media/link.png"):
        for source in (folder / name, str(folder / name), f"file://{folder}/{name}"):
            assert load_image(source, limits=limits).size == (60, 40)
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    through_link = MediaLimits(allowed_local_media_path=str(linked))
    assert load_image(linked / "link.png", limits=through_link).size == (60, 40)
    monkeypatch.chdir(folder)
    assert load_image("deep/in.png", limits=limits).size == (60, 40)


def test_nothing_outside_of_the_folder_is_read(confined: Any, png_file: Path, tmp_path: Path) -> None:
    folder, limits = confined
    names = [
        "out.png",
        "outside/picture.png",
        f"../{png_file.name}",
        "../media-too/near.png",
        "loop",
        "../../etc/passwd",
    ]
    sources = [folder / name for name in names] + [png_file, tmp_path / "missing.png", folder, tmp_path]
    messages = set()
    for path in sources:
        for source in (path, str(path), f"file://{path}"):
            error = refusal(source, limits)
            assert error.code is ErrorCode.MEDIA_FORBIDDEN, (source, error.message)
            messages.add(error.message.replace(str(path), "PATH"))
    assert len(messages) <= 4, "what is outside sounds the same whether it is there or not"
    assert refusal(folder / "missing.png", limits).code is ErrorCode.INVALID_MEDIA
    assert refusal(folder / "deep", limits).code is ErrorCode.INVALID_MEDIA
    for frames in ([str(png_file)], [folder / "out.png"]):
        with pytest.raises(RequestError) as raised:
            load_video(frames, limits=limits)
        assert raised.value.code is ErrorCode.MEDIA_FORBIDDEN


def test_a_link_swapped_in_after_the_check_is_not_followed(
    confined: Any, png_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, limits = confined
    real_find = sources._find_confined

    def find_then_swap(path: Any, root: Any, *, must_exist: Any) -> Any:
        way = real_find(path, root, must_exist=must_exist)
        (folder / "deep").rename(folder / "moved")
        (folder / "deep").symlink_to(png_file.parent)
        return way

    (png_file.parent / "in.png").write_bytes(png_file.read_bytes())
    monkeypatch.setattr(sources, "_find_confined", find_then_swap)
    assert refusal(folder / "deep" / "in.png", limits).code is ErrorCode.INVALID_MEDIA


def test_videos_in_the_folder_are_read(confined: Any, video_bytes: bytes, tmp_path: Path) -> None:
    folder, limits = confined
    (folder / "video.mp4").write_bytes(video_bytes)
    (tmp_path / "video.mp4").write_bytes(video_bytes)
    assert len(load_video(folder / "video.mp4", num_frames=2, limits=limits).frames) == 2
    with pytest.raises(RequestError) as raised:
        load_video(str(tmp_path / "video.mp4"), limits=limits)
    assert raised.value.code is ErrorCode.MEDIA_FORBIDDEN


def test_base64_still_is_base64_in_front_of_a_folder(confined: Any, png_file: Path) -> None:
    text = base64.b64encode(png_file.read_bytes()).decode()
    assert load_image(text, limits=confined[1]).size == (60, 40)
    assert refusal("picture", confined[1]).code is ErrorCode.MEDIA_FORBIDDEN


def test_the_folder_must_be_there(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path / "missing")):
        with pytest.raises(ConfigError, match="allowed_local_media_path"):
            MediaLimits(allowed_local_media_path=folder)


def test_only_regular_files(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo, "/dev/zero"):
        error = refusal(path)
        assert error.code is ErrorCode.INVALID_MEDIA and "not a regular file" in error.message
    assert "No such file" in refusal(tmp_path / "missing.png").message
    assert "does not exist" in refusal(str(tmp_path / "missing.png")).message
    assert refusal("a\0b").code is ErrorCode.INVALID_MEDIA


def test_sizes_are_checked_before_reading(tmp_path: Path, png_file: Path) -> None:
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
def test_bad_data_urls(url: str) -> None:
    error = refusal(url)
    assert error.code is ErrorCode.INVALID_MEDIA and "data URL" in error.message


def test_messages_stay_short() -> None:
    secret = "c2VjcmV0" * 5000
    for source in (f"data:image/png;base64,{secret}", f"data:image/png;base64,{secret}!", secret, f"/tmp/{secret}"):
        message = refusal(source).message
        assert len(message) < 400 and "c2VjcmV0" not in message


def test_what_is_no_source() -> None:
    for source in (None, 5, {"url": "x"}, [b"x"]):
        error = refusal(source)
        assert error.code is ErrorCode.INVALID_MEDIA and type(source).__name__ in error.message


def test_empty_texts_are_no_source() -> None:
    for source in ("", "  "):
        assert "a picture or video must be a path, URL" in refusal(source).message


def test_open_files(png_file: Path, video_bytes: bytes) -> None:
    file = io.BytesIO(png_file.read_bytes())
    assert load_image(file).size == load_image(file).size == (60, 40)  # it may be read again
    with png_file.open("rb") as opened:
        assert load_image(opened, limits=SERVER).size == (60, 40)
    assert len(load_video(io.BytesIO(video_bytes), num_frames=2).frames) == 2
    small = MediaLimits(max_bytes=50)
    assert refusal(io.BytesIO(bytes(51)), small).code is ErrorCode.MEDIA_TOO_LARGE
    assert "open the file with mode 'rb'" in refusal(io.StringIO("text")).message
    file.close()
    assert "cannot read the BytesIO" in refusal(file).message


def test_tensors_are_arrays() -> None:
    assert load_image(torch.zeros(4, 6, 3, dtype=torch.uint8)).size == (6, 4)
    assert load_video(torch.zeros(5, 4, 6, 3, dtype=torch.uint8)).frames.shape == (5, 4, 6, 3)
    assert "uint8 [H, W], [H, W, 3]" in refusal(torch.zeros(3, 4, 6)).message
    assert "cannot be read as an array" in refusal(torch.zeros(4, 6, 3, requires_grad=True)).message


def test_words_are_not_taken_for_base64() -> None:
    assert "does not exist" in refusal("picture").message
    assert read_source(base64.b64encode(b"\x89PNGabc").decode(), Allowance(SERVER)) == b"\x89PNGabc"


def test_base64_and_percent_escapes_are_decoded_in_slices_as_at_once() -> None:
    def decode_at_once(text: Any) -> Any:
        compact = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)

    def attempt(decode: Any, text: Any) -> Any:
        try:
            return decode(text)
        except ValueError:
            return None

    rng = random.Random(1)
    for _ in range(5000):
        letters = "AAAABBQz09+/-_= \n=é%"[: rng.choice([8, 12, 16, 17, 20])]
        text = "".join(rng.choices(letters, k=rng.randint(0, 40)))
        assert attempt(partial(sources._decode_base64, slice_chars=8), text) == attempt(decode_at_once, text), text
        quoted = "".join(rng.choices("%4aF1gé", k=rng.randint(0, 40)))
        assert sources._unquote(quoted, slice_chars=8) == unquote_to_bytes(quoted), quoted


def test_percent_escapes_take_little_memory() -> None:
    url = "data:image/png;base64," + "%41" * 1_000_000
    tracemalloc.start()
    try:
        read_source(url, Allowance(SERVER))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3.5 * len(url), peak
