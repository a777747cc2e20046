"""Audio through PyAV: decoded frame by frame, mixed to mono, resampled, and cut off by limits while it is decoded."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.values import AudioSamples

_MAX_CHANNELS = 32
_MAX_VALUES_PER_S = 400_000
"""Two channels of 192 kHz: files of more values take longer to decode than the limit of seconds allows for."""
_BLOCK_S = 10
"""Seconds of given samples that are resampled at a time."""

Samples = npt.NDArray[np.float32]


class TooLongError(Exception):
    """More audio than the limits allow. The message follows the name of the audio."""


def decode_audio(
    content: bytes | Path, kind: str, rate_hz: int, *, most_s: float, check_rate: Callable[[int], None]
) -> AudioSamples:
    """Return the first audio stream of a file as mono samples at `rate_hz`, or at its own rate for 0.

    A file that is cut off, or damaged, ends where it cannot be decoded any more. `check_rate` gets the file's rate
    before anything is decoded, and may raise. Raises `TooLongError`, ValueError for a file without audio, and PyAV's
    errors where nothing can be decoded.
    """
    import av

    with (
        io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file,
        av.open(file, mode="r", format=kind, metadata_errors="ignore") as container,
    ):
        stream: Any = container.streams.best("audio")
        if stream is None:
            raise ValueError("there is no audio in it")
        own_hz = int(stream.codec_context.sample_rate)
        check_rate(own_hz)
        if not 1 <= stream.codec_context.channels <= _MAX_CHANNELS:
            raise ValueError(f"it has {stream.codec_context.channels} channels, not 1 to {_MAX_CHANNELS}")
        mono = (_mix(frame, own_hz) for frame in _bounded(_iter_frames(container, stream), most_s))
        return _collect(mono, own_hz, rate_hz or own_hz, most_s)


def resample(audio: AudioSamples, rate_hz: int, *, most_s: float) -> AudioSamples:
    """Return given samples at `rate_hz`, or as they are for 0. Raises `TooLongError`."""
    step = _BLOCK_S * audio.rate_hz
    blocks = (audio.samples[start : start + step] for start in range(0, len(audio.samples), step))
    return _collect(blocks, audio.rate_hz, rate_hz or audio.rate_hz, most_s)


def _collect(blocks: Iterator[Samples], own_hz: int, rate_hz: int, most_s: float) -> AudioSamples:
    """Join mono blocks, resampled. Raises `TooLongError`."""
    pieces: list[Samples] = []
    left = int(most_s * rate_hz)
    for piece in blocks if own_hz == rate_hz else _resample_blocks(blocks, own_hz, rate_hz):
        left -= len(piece)
        if left < 0:
            raise TooLongError(f"lasts more than {most_s:g} s")
        pieces.append(piece)
    samples = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.float32)
    return AudioSamples(samples=samples, rate_hz=rate_hz)


def _resample_blocks(blocks: Iterator[Samples], own_hz: int, rate_hz: int) -> Iterator[Samples]:
    import av

    resampler = av.AudioResampler(format="fltp", layout="mono", rate=rate_hz)
    for block in blocks:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block[None]), format="fltp", layout="mono")
        frame.sample_rate = own_hz
        yield from (out.to_ndarray()[0] for out in resampler.resample(frame))
    yield from (out.to_ndarray()[0] for out in resampler.resample(None))


def _iter_frames(container: Any, stream: Any) -> Iterator[Any]:
    """Yield decoded frames, until the end or a damaged place. Raises if there is none before."""
    import av

    has_any = False
    try:
        for frame in container.decode(stream):
            has_any = True
            yield frame
    except av.FFmpegError:
        if not has_any:
            raise


def _bounded(frames: Iterator[Any], most_s: float) -> Iterator[Any]:
    """Yield frames. Raises `TooLongError` for more values than audio of so many seconds may have."""
    left = most_s * _MAX_VALUES_PER_S
    for frame in frames:
        left -= frame.samples * frame.layout.nb_channels
        if left < 0:
            raise TooLongError(f"has more than {most_s * _MAX_VALUES_PER_S:.0f} values in all channels")
        yield frame


def _mix(frame: Any, rate_hz: int) -> Samples:
    """Return the mean of a frame's channels. Raises ValueError where the rate changes within the file."""
    if frame.sample_rate != rate_hz:
        raise ValueError(f"its rate changes from {rate_hz} to {frame.sample_rate} Hz")
    values: npt.NDArray[Any] = frame.to_ndarray()
    channels = values if frame.format.is_planar else values.reshape(-1, frame.layout.nb_channels).T
    scaled: Samples = channels.astype(np.float32)
    if channels.dtype == np.uint8:
        scaled -= 128
    if np.issubdtype(channels.dtype, np.integer):
        scaled /= 2.0 ** (8 * channels.itemsize - 1)
    mixed: Samples = scaled[0].copy() if len(scaled) == 1 else scaled.mean(axis=0, dtype=np.float32)
    return mixed
