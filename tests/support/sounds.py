"""Audio files for tests: real bytes, written by the standard library or by PyAV."""

from __future__ import annotations

import io
import struct
import wave
from typing import Any

import numpy as np
import numpy.typing as npt


def make_tone(seconds: float, *, rate_hz: int = 16000, pitch_hz: float = 440.0) -> npt.NDArray[np.float32]:
    """Return a tone that grows louder, float32 [S]."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    tone: npt.NDArray[np.float32] = (np.sin(2 * np.pi * pitch_hz * times) * np.linspace(0.1, 0.6, len(times))).astype(
        np.float32
    )
    return tone


def make_wav(samples: npt.NDArray[Any], *, rate_hz: int = 16000) -> bytes:
    """Return a WAV of 16 bits: samples [S] or [S, channels] in [-1, 1]."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def make_float_wav(samples: npt.NDArray[np.float32], *, rate_hz: int = 16000) -> bytes:
    """Return a WAV of 32-bit floats, whose values may be anything."""
    data = samples.astype("<f4").tobytes()
    header = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 3, 1, rate_hz, rate_hz * 4, 4, 32, b"data", len(data))
    return b"RIFF" + struct.pack("<I", len(header) + len(data) + 4) + b"WAVE" + header + data


def encode_audio(samples: npt.NDArray[np.float32], kind: str, codec: str, *, rate_hz: int) -> bytes:
    """Return mono samples as a file of FFmpeg's container `kind`."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=rate_hz)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(
            np.round(samples[None] * 32767).astype(np.int16), format="s16", layout="mono"
        )
        frame.sample_rate = rate_hz
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return buffer.getvalue()


def make_video(samples: npt.NDArray[np.float32] | None) -> bytes:
    """Return an MP4 of a few frames, with mono samples of 44.1 kHz beside them or without sound."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        pictures: Any = container.add_stream("mpeg4", rate=4)
        pictures.width = pictures.height = 32
        sound: Any = None if samples is None else container.add_stream("aac", rate=44100, layout="mono")
        for shade in range(4):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), shade * 60, np.uint8), format="rgb24")
            container.mux(pictures.encode(frame))
        container.mux(pictures.encode(None))
        if samples is not None:
            spoken = av.AudioFrame.from_ndarray(samples[None].astype(np.float32), format="fltp", layout="mono")
            spoken.sample_rate = 44100
            for packet in (*sound.encode(spoken), *sound.encode(None)):
                container.mux(packet)
    return buffer.getvalue()
