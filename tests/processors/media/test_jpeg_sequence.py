from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.load import load_video

if TYPE_CHECKING:
    from processors.conftest import Frames


@pytest.fixture(scope="module")
def jpegs(encode: Callable[..., bytes], video_frames: Frames) -> list[str]:
    return [base64.b64encode(encode(frame, "JPEG", quality=95)).decode() for frame in video_frames[:6]]


def refusal(source: object, **limits: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        load_video(source, limits=MediaLimits(**limits))
    return raised.value


def test_base64_jpegs_are_frames(jpegs: list[str], video_frames: Frames) -> None:
    url = "data:video/jpeg;base64," + ",".join(jpegs)
    video = load_video(url, sample_fps=4)
    np.testing.assert_allclose(video.frames.astype(int), video_frames[:6], atol=12)
    assert list(video.timestamps_s) == [0, 0.25, 0.5, 0.75, 1, 1.25] and video.frame_interval_s == 0.25
    fewer = load_video(url.replace("video/jpeg", "Video/JPEG"), num_frames=2)
    np.testing.assert_array_equal(fewer.frames, video.frames[[0, 5]])
    assert list(fewer.timestamps_s) == [0, 2.5]
    assert len(load_video("data:video/jpeg;base64," + jpegs[0]).frames) == 1


def test_other_content_is_refused(jpegs: list[str]) -> None:
    for url, words in (
        ("data:video/jpeg," + jpegs[0], "must hold base64"),
        ("data:video/jpeg;base64,", "too little for JPEGs"),
        ("data:video/jpeg;base64," + "," * 100_000, "too little for JPEGs"),
        ("data:video/jpeg;base64," + jpegs[0] + "," + "A" * len(jpegs[0]), "frame 1 is not a picture"),
    ):
        error = refusal(url)
        assert error.code is ErrorCode.INVALID_MEDIA, error
        assert words in error.message
    url = "data:video/jpeg;base64," + ",".join(jpegs)
    too_small: tuple[dict[str, Any], ...] = (
        {"max_frames": 5},
        {"max_bytes": 1000},
        {"max_total_bytes": 2000},
        {"max_clip_pixels": 5000},
    )
    for limits in too_small:
        assert refusal(url, **limits).code is ErrorCode.MEDIA_TOO_LARGE
    assert len(load_video(url, max_frames=3, limits=MediaLimits(max_frames=5)).frames) == 3
