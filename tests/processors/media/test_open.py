from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from PIL import Image

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.load import load_image
from seesay.processors.media.open import open_media
from seesay.values import Modality, VideoFrames

if TYPE_CHECKING:
    from processors.conftest import Frames

LIMITS = MediaLimits()


def decode_image(source: Any, limits: Any) -> Any:
    return open_media(Modality.IMAGE, source, {}, Allowance(limits)).decode()


def decode_video(source: Any, options: Any, limits: Any) -> Any:
    return open_media(Modality.VIDEO, source, options, Allowance(limits)).decode()


def test_equal_pixels_have_an_equal_digest(encode: Callable[..., bytes], picture: Frames, png_file: Path) -> None:
    media = [decode_image(source, LIMITS) for source in (png_file, encode(picture, "BMP"), picture)]
    assert media[0].modality is Modality.IMAGE and media[0].timestamps_s == ()
    assert media[0].frames.shape == (1, *picture.shape) and media[0].frames.flags.c_contiguous
    assert len({item.digest for item in media}) == 1 and len(media[0].digest) == 32
    other = picture.copy()
    other[3, 4, 1] ^= 1
    assert decode_image(other, LIMITS).digest != media[0].digest
    assert decode_image(picture.reshape(60, 40, 3), LIMITS).digest != media[0].digest


def test_digest_of_a_video_covers_frames_and_times(video_bytes: bytes, video_frames: Frames) -> None:
    first = decode_video(video_bytes, {"num_frames": 4}, LIMITS)
    assert first.modality is Modality.VIDEO and len(first.timestamps_s) == 4
    assert decode_video(video_bytes, {"num_frames": 4}, LIMITS).digest == first.digest
    assert decode_video(video_bytes, {"num_frames": 5}, LIMITS).digest != first.digest
    assert decode_video(first.frames, {}, LIMITS).digest != first.digest
    assert decode_video(video_frames[:1], {}, LIMITS).digest != decode_image(video_frames[0], LIMITS).digest


def test_decoded_pixels_share_no_memory_with_what_was_given(picture: Frames, video_frames: Frames) -> None:
    """What the caller does to it later changes no picture that is on its way to the tower."""
    frames = np.array(video_frames)
    video = VideoFrames(frames=frames, timestamps_s=tuple(map(float, range(len(frames)))), frame_interval_s=1.0)
    for given, media in (
        (picture, decode_image(picture, LIMITS)),
        (frames, decode_video(frames, {}, LIMITS)),
        (frames, decode_video(video, {}, LIMITS)),
    ):
        assert not np.shares_memory(given, media.frames)
        np.testing.assert_array_equal(media.frames.reshape(given.shape), given)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "MPO", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_header_is_read_once(
    encode: Callable[..., bytes], picture: Frames, kind: str, orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image whose size was read is the one that is decoded, with the pixels of one that is only decoded."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture, kind, exif=exif)
    expected = np.asarray(load_image(data))
    opened = []
    real = Image.open

    def note(*args: Any, **options: Any) -> Any:
        opened.append(1)
        return real(*args, **options)

    monkeypatch.setattr(Image, "open", note)
    media = open_media(Modality.IMAGE, data, {}, Allowance(LIMITS))
    assert not opened
    size = media.size()
    assert size is not None and media.size() is size and (size.height, size.width) == expected.shape[:2]
    np.testing.assert_array_equal(media.decode().frames[0], expected)
    assert len(opened) == 1
    np.testing.assert_array_equal(media.decode().frames[0], expected)


def test_packets_are_listed_once(video_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a reader that seeks by them."""
    monkeypatch.setitem(sys.modules, "decord", None)
    opened = []
    real = av.open

    def note(*args: Any, **options: Any) -> Any:
        opened.append(1)
        return real(*args, **options)

    monkeypatch.setattr(av, "open", note)
    media = open_media(Modality.VIDEO, video_bytes, {"num_frames": 4}, Allowance(LIMITS))
    size, again = media.size(), media.size()
    assert size is not None and size.num_frames == 4 and again == size and len(opened) == 1
    assert size.timestamps_s == pytest.approx([0, 1, 1.9, 2.9])
    assert media.decode().size == size
    assert len(opened) == 3, "once more for the orientation of the first frame, and once to decode"


def test_content_keys_cover_content_and_how_it_is_decoded(
    encode: Callable[..., bytes], picture: Frames, video_bytes: bytes, png_file: Path
) -> None:
    def key(modality: Any, source: Any, **options: Any) -> Any:
        return open_media(modality, source, options, Allowance(LIMITS)).content_key

    data = encode(picture)
    keys = [
        key(Modality.IMAGE, data),
        key(Modality.IMAGE, data, transparency="drop"),
        key(Modality.IMAGE, encode(picture, "BMP")),
        key(Modality.VIDEO, video_bytes, num_frames=4),
        key(Modality.VIDEO, video_bytes, num_frames=5),
    ]
    assert len(set(keys)) == 5 and None not in keys and key(Modality.IMAGE, data) == keys[0]
    assert key(Modality.IMAGE, picture) is None and key(Modality.IMAGE, Image.fromarray(picture)) is None
    assert key(Modality.VIDEO, [picture, picture]) is None


def test_unknown_option_is_named() -> None:
    with pytest.raises(RequestError, match="'speed'") as raised:
        decode_video([], {"speed": 2}, LIMITS)
    assert raised.value.code is ErrorCode.INVALID_REQUEST and raised.value.param == "speed"


def test_many_threads(encode: Callable[..., bytes], picture: Frames, video_bytes: bytes) -> None:
    data = encode(picture, "JPEG")
    image, video = decode_image(data, LIMITS), decode_video(video_bytes, {}, LIMITS)
    with ThreadPoolExecutor(8) as threads:
        images = [threads.submit(decode_image, data, LIMITS) for _ in range(16)]
        videos = [threads.submit(decode_video, video_bytes, {}, LIMITS) for _ in range(16)]
        assert {future.result().digest for future in images} == {image.digest}
        assert {future.result().digest for future in videos} == {video.digest}
    np.testing.assert_array_equal(images[0].result().frames, image.frames)
