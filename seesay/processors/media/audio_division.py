"""Divides audio that is longer than a model's window, where it is quiet."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from seesay.values import AudioSamples

_FRAMES_PER_S = 50
"""Loudness is measured of so many frames a second."""
_SEARCHED = 5
"""A cut is in the last of so many parts of a window, and leaves half as much behind it."""


def divide_audio(audio: AudioSamples, max_samples: int) -> list[AudioSamples]:
    """Return audio in pieces of at most `max_samples`, each cut off in the quietest moment of its last fifth. One of
    0 is not divided. The pieces share memory with `audio`."""
    if not max_samples:
        return [audio]
    cuts = [0, *_find_cuts(audio, max_samples), len(audio.samples)]
    return [AudioSamples(samples=audio.samples[start:end], rate_hz=audio.rate_hz) for start, end in pairwise(cuts)]


def _find_cuts(audio: AudioSamples, max_samples: int) -> Iterator[int]:
    start, length = 0, len(audio.samples)
    searched = max_samples // _SEARCHED
    while length - start > max_samples:
        end = min(start + max_samples, length - searched // 2)
        begin = start + max_samples - searched
        start = begin + _find_quietest(audio.samples[begin:end], max(1, audio.rate_hz // _FRAMES_PER_S))
        yield start


def _find_quietest(samples: npt.NDArray[np.float32], frame: int) -> int:
    """Return the middle of the frame with least power, the last of several."""
    num_frames = len(samples) // frame
    if not num_frames:
        return len(samples)
    power = np.square(samples[: num_frames * frame].reshape(num_frames, frame)).mean(axis=1)
    quietest = num_frames - 1 - int(np.argmin(power[::-1]))
    return quietest * frame + frame // 2
