"""An audio that was read or fetched: its samples, mono and at the rate that a model takes.

Only containers of known kinds are opened, from bytes in memory or a regular file. Nothing is parsed before `decode`.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, MissingExtraError, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.decoded import make_decoded_audio
from seesay.processors.media.sources import describe, read_source
from seesay.processors.media.video.video_file import has_pyav
from seesay.system.hashing import digest
from seesay.values import AudioSamples, DecodedMedia, Modality

_MIN_RATE_HZ, MAX_RATE_HZ = 1000, 768_000
_MAX_LEVEL = 1e6
"""Full scale is 1: samples far beyond it are damaged, and overflow in the features that a model computes of them."""
_BEGINNINGS = {
    b"RF64": "wav",
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"ID3\x02": "mp3",
    b"ID3\x03": "mp3",
    b"ID3\x04": "mp3",
    b"\x1a\x45\xdf\xa3": "matroska",
}


class Audio:
    """One audio: an encoded file, as bytes or the path of a regular file, or samples. `name` is what messages call it.

    rate_hz: of the decoded samples; 0 keeps the file's own.
    """

    modality = Modality.AUDIO

    def __init__(self, content: bytes | Path | AudioSamples, *, rate_hz: int, limits: MediaLimits, name: str) -> None:
        self.content = content
        self._rate_hz, self._limits, self._name = rate_hz, limits, name

    def size(self) -> None:
        """Decoding alone tells how many samples there are: headers are often wrong about it."""

    def decode(self) -> DecodedMedia:
        """Return the samples. Raises `RequestError` for content that is damaged or beyond the limits, and
        `MissingExtraError` without PyAV."""
        return make_decoded_audio(self.samples())

    def samples(self) -> AudioSamples:
        """See `decode`."""
        if not has_pyav():
            raise MissingExtraError("reading audio", package="av", extra="video")
        from seesay.processors.media.audio_av import TooLongError, decode_audio, resample

        most_s = self._limits.max_audio_s
        try:
            if isinstance(self.content, AudioSamples):
                found = resample(self.content, self._rate_hz, most_s=most_s)
            else:
                kind = self._find_kind(self.content)
                found = decode_audio(self.content, kind, self._rate_hz, most_s=most_s, check_rate=self._check_rate)
        except RequestError:
            raise
        except TooLongError as error:
            message = f"{self._name} {error}: send a part of it or raise MediaLimits.max_audio_s"
            raise RequestError(ErrorCode.MEDIA_TOO_LARGE, message) from None
        except MemoryError:
            raise RequestError(ErrorCode.OUT_OF_MEMORY, f"not enough memory to decode {self._name}") from None
        except Exception as error:  # any of FFmpeg's errors
            reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0][:120] or type(error).__name__
            message = f"{self._name} cannot be decoded, it is damaged or cut off: {reason}"
            raise RequestError(ErrorCode.INVALID_MEDIA, message) from error
        self._check_samples(found)
        return found

    @cached_property
    def content_key(self) -> bytes | None:
        """A hash of the encoded content and of how it is decoded. None where the content may change."""
        if not isinstance(self.content, bytes):
            return None
        return digest(b"audio", self.content, str(self._rate_hz).encode())

    def _find_kind(self, content: bytes | Path) -> str:
        kind = _container_kind(_read_head(content))
        if kind is None:
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                f"{self._name} is not audio of a known kind (WAV, MP3, FLAC, Ogg, AAC, MP4/M4A or WebM)",
            )
        return kind

    def _check_rate(self, rate_hz: int) -> None:
        check_rate(rate_hz, self._name)

    def _check_samples(self, found: AudioSamples) -> None:
        if not len(found.samples):
            raise RequestError(ErrorCode.INVALID_MEDIA, f"{self._name} holds no samples")
        if not float(np.abs(found.samples).max()) <= _MAX_LEVEL:  # also for NaN
            raise RequestError(
                ErrorCode.INVALID_MEDIA, f"{self._name} holds samples that are not finite, or far beyond full scale"
            )


def open_audio(source: Any, allowance: Allowance, *, rate_hz: int) -> Audio:
    """Read or fetch an audio that `load_audio` takes. Nothing is decoded. Raises `RequestError`."""
    if isinstance(source, AudioSamples):
        samples = np.asarray(source.samples)
        if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                f"AudioSamples.samples must be an array of floats [S], got {samples.dtype} {list(samples.shape)}",
            )
        check_rate(source.rate_hz, "AudioSamples")
        content: bytes | Path | AudioSamples = AudioSamples(
            samples=samples.astype(np.float32), rate_hz=int(source.rate_hz)
        )
        name = "AudioSamples"
    else:
        content, name = read_source(source, allowance), describe(source)
    return Audio(content, rate_hz=rate_hz, limits=allowance.limits, name=name)


def check_rate(rate_hz: object, name: str) -> None:
    """Raise `RequestError` unless `rate_hz` may be a sampling rate."""
    if isinstance(rate_hz, int) and not isinstance(rate_hz, bool) and _MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        return
    raise RequestError(
        ErrorCode.INVALID_MEDIA,
        f"{name} must have a sampling rate of {_MIN_RATE_HZ} to {MAX_RATE_HZ} Hz, got {str(rate_hz)[:40]}",
    )


def _read_head(content: bytes | Path) -> bytes:
    if isinstance(content, bytes):
        return content[:16]
    with content.open("rb") as file:
        return file.read(16)


def _container_kind(head: bytes) -> str | None:
    """Return FFmpeg's name of the container that begins with `head`."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    if head[4:8] == b"ftyp":
        return "mov"
    if head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xE0 == 0xE0:  # an MPEG frame: layer 0 is AAC's
        return "mp3" if head[1] & 0x06 else "aac"
    return _BEGINNINGS.get(head[:4])
