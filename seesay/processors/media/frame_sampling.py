"""Chooses the frames of a video. Pure arithmetic; the rules for `fps` are those of qwen-vl-utils."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError

DEFAULT_FPS = 2.0
_FRAME_FACTOR = 2
_MIN_FRAMES = 4
_MAX_FRAMES = 768


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSampling:
    """Take exactly `num_frames` frames, or `fps` per second within `min_frames` and `max_frames`.

    `limit` is the most frames that may be taken at all. Built by `checked`.
    """

    fps: float | None
    num_frames: int | None
    min_frames: int
    max_frames: int
    limit: int

    @classmethod
    def checked(
        cls,
        *,
        fps: float | None = None,
        num_frames: int | None = None,
        min_frames: int | None = None,
        max_frames: int | None = None,
        limit: int = _MAX_FRAMES,
    ) -> FrameSampling:
        """Check options as a user gave them. Raises `RequestError` that names the wrong one."""
        if fps is not None and num_frames is not None:
            raise _bad_option("num_frames", "fps and num_frames exclude each other: give one of them")
        if fps is not None and not (_is_number(fps) and 0 < fps < math.inf):
            raise _bad_option("fps", f"fps must be a number above 0, got {fps!r}")
        for name, value in (("num_frames", num_frames), ("min_frames", min_frames), ("max_frames", max_frames)):
            if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
                raise _bad_option(name, f"{name} must be an integer of at least 1, got {value!r}")
            if value is not None and value > limit:
                raise RequestError(
                    ErrorCode.MEDIA_TOO_LARGE,
                    f"{name}={value} is more than the {limit} frames allowed: take fewer, "
                    "or raise MediaLimits.max_frames",
                    name,
                )
        if min_frames is not None and max_frames is not None and min_frames > max_frames:
            raise _bad_option("min_frames", f"min_frames={min_frames} is more than max_frames={max_frames}")
        return cls(
            fps=fps,
            num_frames=num_frames,
            min_frames=min(_MIN_FRAMES, limit) if min_frames is None else min_frames,
            max_frames=min(_MAX_FRAMES, limit) if max_frames is None else max_frames,
            limit=limit,
        )

    def indices(self, total_frames: int, video_fps: float) -> npt.NDArray[np.int64]:
        """Return ascending frame numbers [N] of a video with `total_frames` ≥ 1 frames, `video_fps` per second."""
        if self.num_frames is not None:
            return spread(total_frames, min(self.num_frames, total_frames))
        wanted = total_frames / video_fps * (self.fps or DEFAULT_FPS)
        lowest = math.ceil(self.min_frames / _FRAME_FACTOR) * _FRAME_FACTOR
        highest = math.floor(min(self.max_frames, self.limit) / _FRAME_FACTOR) * _FRAME_FACTOR
        wanted = min(max(wanted, lowest), highest, total_frames)
        count = math.floor(wanted / _FRAME_FACTOR) * _FRAME_FACTOR
        # The rule gives 0 for a video of one frame, and for a limit of one.
        return spread(total_frames, max(count, 1))

    def indices_of_given(self, total_frames: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the frames to take of those given one by one: all, unless `num_frames` is smaller."""
        count = min(self.num_frames or total_frames, total_frames)
        if count > self.limit:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"the video has {count} frames, more than the {self.limit} allowed: pass num_frames, or raise "
                "MediaLimits.max_frames",
                "num_frames",
            )
        return spread(total_frames, count)


def spread(total: int, count: int) -> npt.NDArray[np.int64]:
    """Return `count` of the numbers 0 … total - 1, evenly spread, both ends included; [0] for one."""
    # In float32 and from both ends, as torch.linspace does: the rounding of halves depends on that.
    if count == 1:
        return np.zeros(1, dtype=np.int64)
    last = np.float32(total - 1)
    step = last / np.float32(count - 1)
    ranks = np.arange(count)
    rising, falling = step * ranks.astype(np.float32), last - step * (count - 1 - ranks).astype(np.float32)
    return np.rint(np.where(ranks < count // 2, rising, falling)).astype(np.int64)


def fill_sampling_options(chosen: Mapping[str, Any], *, num_frames: int | None, limit: int) -> Mapping[str, Any]:
    """Return the options that a request chose; `num_frames`, lowered to `limit`, where it chose no sampling at all."""
    is_chosen = any(name in chosen for name in ("fps", "num_frames", "min_frames", "max_frames"))
    return chosen if is_chosen or num_frames is None else {**chosen, "num_frames": min(num_frames, limit)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bad_option(name: str, message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, name)
