"""`DecodedMedia` from pixels: the one place where decoded content is hashed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seesay.system.hashing import digest
from seesay.values import AudioSamples, DecodedMedia, Modality

_NO_FRAMES = (0, 0, 0, 3)


def make_decoded(
    modality: Modality,
    frames: npt.NDArray[np.uint8],
    timestamps_s: tuple[float, ...] = (),
    frame_interval_s: float = 0.0,
    source_fps: float = 0.0,
) -> DecodedMedia:
    """Return frames uint8 [N, H, W, 3], which the result owns from now on, with the hash of pixels, shape and times."""
    frames = np.ascontiguousarray(frames)
    shape = np.asarray(frames.shape, dtype=np.int64)
    times = np.asarray((*timestamps_s, frame_interval_s, source_fps), dtype=np.float64)
    return DecodedMedia(
        modality=modality,
        frames=frames,
        timestamps_s=timestamps_s,
        frame_interval_s=frame_interval_s,
        source_fps=source_fps,
        digest=digest(modality.encode(), shape.data, frames.data, times.data),
    )


def make_decoded_audio(audio: AudioSamples) -> DecodedMedia:
    """Return samples, which the result owns from now on, with the hash of them and their rate."""
    samples = np.ascontiguousarray(audio.samples)
    rate = np.asarray(audio.rate_hz, dtype=np.int64)
    return DecodedMedia(
        modality=Modality.AUDIO,
        frames=np.zeros(_NO_FRAMES, dtype=np.uint8),
        audio=AudioSamples(samples=samples, rate_hz=audio.rate_hz),
        digest=digest(Modality.AUDIO.encode(), rate.data, samples.data),
    )
