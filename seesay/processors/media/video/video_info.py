"""Facts about a video, and the frame rate that follows from the times of its frames."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoInfo:
    """Frame size in pixels, number of frames, and frames per second (the mean, where the rate varies) of a video."""

    width: int
    height: int
    num_frames: int
    fps: float

    @property
    def duration_s(self) -> float:
        return self.num_frames / self.fps


class BrokenOffError(Exception):
    """A video cannot be decoded to its end: at most its first `num_frames` frames can be read."""

    def __init__(self, num_frames: int) -> None:
        super().__init__(f"it breaks off after {num_frames} frames")
        self.num_frames = num_frames


def measure_fps(num_frames: int, span_s: float, declared: float) -> float:
    """Return the frames per second of a video whose last frame is shown `span_s` seconds after its first: the declared
    rate where it explains that to within one frame, else the mean rate. 0 stands for no declared rate."""
    num_steps = num_frames - 1
    if declared > 0 and (span_s <= 0 or abs(span_s * declared - num_steps) < 1):
        return declared
    return num_steps / span_s if num_steps and span_s > 0 else 1.0
