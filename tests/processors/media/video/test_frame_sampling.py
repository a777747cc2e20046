from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.video.frame_sampling import FrameSampling, fill_sampling_options, spread


def test_spread_equals_torch() -> None:
    import torch

    for total in (1, 2, 3, 7, 30, 390, 1801, 54001):
        for count in {1, 2, 3, 4, 7, 26, min(768, total)}:
            if count <= total and (count > 1 or total == 1):
                theirs = torch.linspace(0, total - 1, count).round().long().numpy()
                np.testing.assert_array_equal(spread(total, count), theirs, err_msg=f"{count} of {total}")


@pytest.mark.parametrize("total", [2, 3, 4, 5, 31, 390, 20_000])
@pytest.mark.parametrize("video_fps", [1.0, 24.0, 29.97, 60.0])
@pytest.mark.parametrize(
    "options", [{}, {"fps": 1}, {"fps": 0.3}, {"fps": 25.0}, {"min_frames": 9}, {"fps": 4, "max_frames": 11}]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_number_of_frames_equals_qwen_vl_utils(total: int, video_fps: float, options: dict[str, Any]) -> None:
    qwen = pytest.importorskip("qwen_vl_utils.vision_process")
    assert len(FrameSampling.checked(**options).indices(total, video_fps)) == qwen.smart_nframes(
        options, total, video_fps
    )


@pytest.mark.parametrize("total", [2, 7, 100])
@pytest.mark.parametrize("nframes", [2, 3, 5, 7, 8])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nframes_equals_qwen_vl_utils(total: int, nframes: int) -> None:
    """Which refuses more frames than there are: of a file, as many come as it has."""
    qwen = pytest.importorskip("qwen_vl_utils.vision_process")
    ours = len(FrameSampling.checked(nframes=nframes).indices(total, 25.0))
    try:
        assert ours == qwen.smart_nframes({"nframes": nframes}, total, 25.0)
    except ValueError:
        assert ours == total


RANGES = [(None, None), (1.0, None), (None, 2.5), (1.0, 2.5), (0.03, 3.97), (3.0, 100.0), (0, 0.5)]


@pytest.mark.parametrize("fps", [10.0, 24.0, 25.0, 30.0])
@pytest.mark.parametrize(("start", "end"), RANGES)
@pytest.mark.parametrize("options", [{"fps": 4.0}, {"nframes": 4}])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_time_ranges_equal_qwen_vl_utils(fps: float, start: Any, end: Any, options: dict[str, Any]) -> None:
    qwen = pytest.importorskip("qwen_vl_utils.vision_process")
    total = round(4 * fps)
    times = {k: v for k, v in (("video_start", start), ("video_end", end)) if v is not None}
    first, last, count = qwen.calculate_video_frame_range(times, total, fps)
    expected = first + spread(count, qwen.smart_nframes(options, count, fps))
    choice = FrameSampling.checked(**options, **times).choose(np.arange(total) / fps, fps)
    assert choice.indices.tolist() == expected.tolist() and choice.indices[-1] <= last
    np.testing.assert_allclose(choice.timestamps_s, expected / fps)
    assert choice.interval_s == pytest.approx(count / fps / len(expected))
    assert choice.source_fps == fps


def test_time_ranges_of_uneven_rates_follow_the_clock() -> None:
    times = np.array([0, 0.04, 0.08, 0.12, 5.0, 5.5, 6.0, 9.0])
    choice = FrameSampling.checked(num_frames=10, video_start=0.1, video_end=6).choose(times, 8 / 9)
    assert choice.timestamps_s == (0.12, 5.0, 5.5, 6.0)
    for options, name in (({"video_start": 9.5}, "video_start"), ({"video_start": 1, "video_end": 4}, "video_start")):
        with pytest.raises(RequestError, match="last one is shown at 9 s") as raised:
            FrameSampling.checked(**options).choose(times, 8 / 9)
        assert raised.value.param == name


def test_num_frames_is_exact_and_never_more_than_there_are() -> None:
    sampling = FrameSampling.checked(num_frames=5)
    assert sampling.indices(21, 30.0).tolist() == [0, 5, 10, 15, 20]
    assert sampling.indices(3, 30.0).tolist() == [0, 1, 2]
    assert FrameSampling.checked().indices(1, 30.0).tolist() == [0]


@pytest.mark.parametrize("name", ["num_frames", "nframes"])
def test_max_frames_bounds_a_given_number(name: str) -> None:
    assert FrameSampling.checked(**{name: 40}, max_frames=4).indices(100, 30.0).tolist() == [0, 33, 66, 99]
    assert len(FrameSampling.checked(**{name: 4}, max_frames=40).indices(100, 30.0)) == 4


def test_the_rate_of_given_frames_takes_the_place_of_a_default_rate() -> None:
    default = {"fps": 3, "min_frames": 1, "max_frames": 540}
    chosen = fill_sampling_options({"sample_fps": 2}, default, limit=9)
    assert chosen == {"sample_fps": 2, "min_frames": 1, "max_frames": 9}
    assert FrameSampling.checked(**chosen).rate_of_given() == 2
    both = FrameSampling.checked(**fill_sampling_options({"sample_fps": 2, "fps": 2}, default, limit=9))
    with pytest.raises(RequestError, match="fps and sample_fps mean the same"):
        both.rate_of_given()


def test_limit_caps_what_fps_gives() -> None:
    assert len(FrameSampling.checked(fps=30.0, limit=10).indices(1000, 30.0)) == 10
    assert len(FrameSampling.checked(limit=1).indices(1000, 30.0)) == 1


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"fps": 2, "num_frames": 4}, "num_frames", ErrorCode.INVALID_REQUEST),
        ({"fps": 0}, "fps", ErrorCode.INVALID_REQUEST),
        ({"fps": float("nan")}, "fps", ErrorCode.INVALID_REQUEST),
        ({"fps": float("inf")}, "fps", ErrorCode.INVALID_REQUEST),
        ({"fps": "2"}, "fps", ErrorCode.INVALID_REQUEST),
        ({"num_frames": 0}, "num_frames", ErrorCode.INVALID_REQUEST),
        ({"num_frames": 2.5}, "num_frames", ErrorCode.INVALID_REQUEST),
        ({"max_frames": True}, "max_frames", ErrorCode.INVALID_REQUEST),
        ({"min_frames": 8, "max_frames": 4}, "min_frames", ErrorCode.INVALID_REQUEST),
        ({"num_frames": 769}, "num_frames", ErrorCode.MEDIA_TOO_LARGE),
        ({"fps": 10**400}, "fps", ErrorCode.INVALID_REQUEST),
        ({"fps": 2, "nframes": 4}, "nframes", ErrorCode.INVALID_REQUEST),
        ({"sample_fps": 0}, "sample_fps", ErrorCode.INVALID_REQUEST),
        ({"video_start": -1}, "video_start", ErrorCode.INVALID_REQUEST),
        ({"video_end": "3"}, "video_end", ErrorCode.INVALID_REQUEST),
        ({"video_end": float("nan")}, "video_end", ErrorCode.INVALID_REQUEST),
        ({"video_start": 2, "video_end": 1}, "video_start", ErrorCode.INVALID_REQUEST),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], param: str, code: Any) -> None:
    with pytest.raises(RequestError) as raised:
        FrameSampling.checked(**options)
    assert (raised.value.param, raised.value.code) == (param, code)
    assert param in raised.value.message
