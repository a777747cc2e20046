"""Blank media, by which a processor of Transformers is tried out, and how it refuses media."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.decoded import make_decoded_audio
from seesay.values import AudioSamples, DecodedMedia, MediaSize, Modality


def make_blank(modality: Modality, size: MediaSize) -> DecodedMedia:
    """Return black frames, or silence."""
    if modality is Modality.AUDIO:
        silence = np.zeros(size.num_samples, dtype=np.float32)
        return make_decoded_audio(AudioSamples(samples=silence, rate_hz=size.rate_hz))
    return DecodedMedia(
        modality=modality,
        frames=np.zeros((size.num_frames, size.height, size.width, 3), dtype=np.uint8),
        timestamps_s=size.timestamps_s,
        frame_interval_s=size.frame_interval_s,
        digest=bytes(32),
    )


def refuse(size: MediaSize, reason: str, cause: Exception | None = None) -> NoReturn:
    """Raise the `RequestError` for media of this size that the processor refuses."""
    kind = f"{size.num_frames} frames"
    if size.num_frames == 1:
        kind = "a video of one frame" if size.timestamps_s else "a picture"
    shown = f"audio of {size.audio_s:.3f} s" if size.rate_hz else f"{kind} of {size.width}x{size.height} pixels"
    text = f"the model's processor refuses {shown}: {reason}"
    raise RequestError(ErrorCode.INVALID_MEDIA, text.splitlines()[0], "messages") from cause
