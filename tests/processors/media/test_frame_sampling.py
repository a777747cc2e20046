from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.frame_sampling import FrameSampling, spread


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


def test_num_frames_is_exact_and_never_more_than_there_are() -> None:
    sampling = FrameSampling.checked(num_frames=5)
    assert sampling.indices(21, 30.0).tolist() == [0, 5, 10, 15, 20]
    assert sampling.indices(3, 30.0).tolist() == [0, 1, 2]
    assert FrameSampling.checked().indices(1, 30.0).tolist() == [0]


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
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], param: str, code: Any) -> None:
    with pytest.raises(RequestError) as raised:
        FrameSampling.checked(**options)
    assert (raised.value.param, raised.value.code) == (param, code)
    assert param in raised.value.message
