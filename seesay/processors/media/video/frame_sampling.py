"""Chooses the frames of a video. Pure arithmetic; the rules for `fps`, `nframes`, `video_start` and `video_end` are
those of qwen-vl-utils."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError, show
from seesay.processors.media.video.video_info import measure_fps

DEFAULT_FPS = 2.0
SAMPLING_OPTIONS = frozenset(
    {"fps", "num_frames", "nframes", "sample_fps", "min_frames", "max_frames", "video_start", "video_end"}
)
_COUNTING_OPTIONS = ("fps", "num_frames", "nframes", "min_frames", "max_frames")
_FRAME_FACTOR = 2
_MIN_FRAMES = 4
_MAX_FRAMES = 768
_LARGEST = 1e9
"""Largest rate and time: more is a typing error."""
_TIME_TOLERANCE_S = 0.0005
"""Containers round the times of frames, to milliseconds at worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameChoice:
    """The frames to take of a video: their numbers `indices` (ascending, from 0), their times from its first frame on,
    the seconds that each of them stands for, and the rate of all frames of the video."""

    indices: npt.NDArray[np.int64]
    timestamps_s: tuple[float, ...]
    interval_s: float
    source_fps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSampling:
    """Take `num_frames` frames, or `fps` per second within `min_frames` and `max_frames`, of those that are shown from
    `start_s` to `end_s` (None: from the beginning, to the end). `num_frames` is at most `max_frames`.

    `most_given` is the most frames to take of those given one by one, and `given_fps` their rate. `limit` is the most
    frames that may be taken at all. Built by `checked`.
    """

    fps: float | None
    num_frames: int | None
    min_frames: int
    max_frames: int
    most_given: int | None
    given_fps: float | None
    start_s: float | None
    end_s: float | None
    limit: int

    @classmethod
    def checked(
        cls,
        *,
        fps: float | None = None,
        num_frames: int | None = None,
        nframes: int | None = None,
        sample_fps: float | None = None,
        min_frames: int | None = None,
        max_frames: int | None = None,
        video_start: float | None = None,
        video_end: float | None = None,
        limit: int = _MAX_FRAMES,
    ) -> FrameSampling:
        """Check options as a user gave them. `nframes` is rounded to an even number. Raises `RequestError` that names
        the wrong one."""
        _check_exclusive({"fps": fps, "num_frames": num_frames, "nframes": nframes})
        for name, rate in (("fps", fps), ("sample_fps", sample_fps)):
            _check_rate(name, rate)
        _check_counts(limit, num_frames=num_frames, nframes=nframes, min_frames=min_frames, max_frames=max_frames)
        _check_range(video_start, video_end)
        if nframes is not None:
            num_frames = min(max(round(nframes / _FRAME_FACTOR), 1) * _FRAME_FACTOR, limit)
        if num_frames is not None and max_frames is not None:
            num_frames = min(num_frames, max_frames)
        return cls(
            fps=fps,
            num_frames=num_frames,
            min_frames=min(_MIN_FRAMES, limit) if min_frames is None else min_frames,
            max_frames=min(_MAX_FRAMES, limit) if max_frames is None else max_frames,
            most_given=max_frames if num_frames is None else num_frames,
            given_fps=sample_fps,
            start_s=video_start,
            end_s=video_end,
            limit=limit,
        )

    def choose(self, times_s: npt.NDArray[np.float64], video_fps: float) -> FrameChoice:
        """Return the frames to take of a video whose frames are shown at `times_s` [N] (ascending, from 0 on), about
        `video_fps` per second. Raises `RequestError` where none is shown between the chosen times."""
        if self.given_fps is not None:
            raise _bad_option("sample_fps", "sample_fps is the rate of frames that are given one by one: use fps")
        first, stop = self._find_range(times_s)
        fps = measure_fps(stop - first, float(times_s[stop - 1] - times_s[first]), video_fps)
        indices = first + self.indices(stop - first, fps)
        return _choice(indices, times_s, duration_s=(stop - first) / fps, source_fps=video_fps)

    def choose_given(
        self, times_s: npt.NDArray[np.float64], *, duration_s: float, source_fps: float = 0.0
    ) -> FrameChoice:
        """Return the frames to take of those given one by one: all between the chosen times, unless `num_frames` or
        `max_frames` are fewer. `duration_s` is that of all of them, `source_fps` as in `VideoFrames`."""
        first, stop = self._find_range(times_s)
        count = min(self.most_given or stop - first, stop - first)
        if count > self.limit:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"the video has {count} frames, more than the {self.limit} allowed: pass num_frames or max_frames, or "
                "raise MediaLimits.max_frames",
                "num_frames",
            )
        share = (stop - first) / len(times_s)
        indices = first + spread(stop - first, count)
        return _choice(indices, times_s, duration_s=duration_s * share, source_fps=source_fps)

    def rate_of_given(self) -> float:
        """Return the rate, in frames per second, of a list of frames. Raises `RequestError` for two rates."""
        if self.fps is not None and self.given_fps is not None:
            raise _bad_option("sample_fps", "of frames that are given one by one, fps and sample_fps mean the same")
        return self.given_fps or self.fps or DEFAULT_FPS

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

    def _find_range(self, times_s: npt.NDArray[np.float64]) -> tuple[int, int]:
        first, stop = 0, len(times_s)
        if self.start_s is not None:
            first = int(np.searchsorted(times_s, self.start_s - _TIME_TOLERANCE_S, "left"))
        if self.end_s is not None:
            stop = int(np.searchsorted(times_s, self.end_s + _TIME_TOLERANCE_S, "right"))
        if first >= stop:
            raise _bad_option(
                "video_end" if self.start_s is None else "video_start",
                f"no frame is shown from video_start={self.start_s or 0:g} to "
                f"video_end={times_s[-1] if self.end_s is None else self.end_s:g}: the last one is shown at "
                f"{times_s[-1]:g} s",
            )
        return first, stop


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


def fill_sampling_options(chosen: Mapping[str, Any], default: Mapping[str, Any], *, limit: int) -> Mapping[str, Any]:
    """Return the options that a request chose, and those of `default` where it chose no number of frames: counts are
    lowered to `limit`. The default rate is left out beside `sample_fps`, the rate of given frames."""
    if any(name in chosen for name in _COUNTING_OPTIONS):
        return chosen
    lowered = {name: value if name == "fps" else min(value, limit) for name, value in default.items()}
    if "sample_fps" in chosen:
        lowered.pop("fps", None)
    return {**chosen, **lowered}


def _choice(
    indices: npt.NDArray[np.int64], times_s: npt.NDArray[np.float64], *, duration_s: float, source_fps: float
) -> FrameChoice:
    times, interval_s = tuple(times_s[indices].tolist()), duration_s / len(indices)
    return FrameChoice(indices=indices, timestamps_s=times, interval_s=interval_s, source_fps=source_fps)


def _check_count(name: str, value: object, limit: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _bad_option(name, f"{name} must be an integer of at least 1, got {show(value)}")
    if value > limit:
        raise RequestError(
            ErrorCode.MEDIA_TOO_LARGE,
            f"{name}={value} is more than the {limit} frames allowed: take fewer, or raise MediaLimits.max_frames",
            name,
        )


def _check_exclusive(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise _bad_option(given[1], f"{given[0]} and {given[1]} exclude each other: give one of them")


def _check_rate(name: str, rate: float | None) -> None:
    if rate is not None and not (_is_number(rate) and 0 < rate <= _LARGEST):
        raise _bad_option(name, f"{name} must be a number above 0, got {show(rate)}")


def _check_counts(limit: int, *, min_frames: int | None, max_frames: int | None, **counts: int | None) -> None:
    for name, value in {**counts, "min_frames": min_frames, "max_frames": max_frames}.items():
        _check_count(name, value, limit)
    if min_frames is not None and max_frames is not None and min_frames > max_frames:
        raise _bad_option("min_frames", f"min_frames={min_frames} is more than max_frames={max_frames}")


def _check_range(start_s: float | None, end_s: float | None) -> None:
    for name, value in (("video_start", start_s), ("video_end", end_s)):
        if value is not None and not (_is_number(value) and 0 <= value <= _LARGEST):
            raise _bad_option(name, f"{name} must be a number of seconds of at least 0, got {show(value)}")
    if start_s is not None and end_s is not None and start_s > end_s:
        raise _bad_option("video_start", f"video_start={start_s:g} is after video_end={end_s:g}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bad_option(name: str, message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, name)
