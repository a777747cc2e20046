"""Audio is decoded to mono float32 at the rate asked for, within limits, whatever the file holds."""

from __future__ import annotations

import base64
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sounds import encode_audio, make_float_wav, make_tone, make_video, make_wav

from seesay import MediaLimits, load_audio
from seesay.errors import RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.audio import open_audio
from seesay.values import AudioSamples


def _read_error(source: object, **limits: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        load_audio(source, limits=MediaLimits(**limits))
    return caught.value


def test_a_wav_at_its_own_rate_has_exactly_its_samples(tmp_path: Path) -> None:
    tone = make_tone(0.3)
    wav = make_wav(tone)
    expected = np.round(tone * 32767).astype(np.int16).astype(np.float32) / 32768
    path = tmp_path / "tone.wav"
    path.write_bytes(wav)
    url = f"data:audio/wav;base64,{base64.b64encode(wav).decode()}"
    for source in (wav, path, str(path), url, base64.b64encode(wav).decode(), io.BytesIO(wav)):
        found = load_audio(source, rate_hz=16000)
        assert found.rate_hz == 16000 and found.samples.dtype == np.float32
        np.testing.assert_array_equal(found.samples, expected)


def test_channels_are_averaged() -> None:
    left, right = make_tone(0.1), make_tone(0.1, pitch_hz=700)
    found = load_audio(make_wav(np.stack([left, right], axis=1)))
    np.testing.assert_allclose(found.samples, (left + right) / 2, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "codec", "rate_hz"),
    [("mp3", "libmp3lame", 22050), ("flac", "flac", 44100), ("ogg", "libopus", 48000),
     ("adts", "aac", 44100), ("ipod", "aac", 44100), ("wav", "pcm_u8", 8000), ("wav", "pcm_f64le", 48000)],
)  # fmt: skip
def test_every_kind_is_resampled_to_the_same_tone(kind: str, codec: str, rate_hz: int) -> None:
    found = load_audio(encode_audio(make_tone(1.0, rate_hz=rate_hz), kind, codec, rate_hz=rate_hz), rate_hz=16000)
    assert found.rate_hz == 16000 and abs(len(found.samples) - 16000) < 4000  # encoders pad
    spectrum = np.abs(np.fft.rfft(found.samples))
    peak_hz = spectrum.argmax() * 16000 / len(found.samples)
    assert abs(peak_hz - 440) < 5
    assert 0.2 < np.sqrt((found.samples**2).mean()) < 0.35  # the tone has 0.26: no gain is added


def test_given_samples_are_resampled_as_files_are() -> None:
    tone = make_tone(12.0, rate_hz=8000)  # longer than a block
    given = load_audio(AudioSamples(samples=tone, rate_hz=8000), rate_hz=16000).samples
    read = load_audio(make_float_wav(tone, rate_hz=8000), rate_hz=16000).samples
    np.testing.assert_allclose(given, read, atol=1e-5)
    assert abs(len(given) - 192_000) < 50


def test_content_decides_the_digest_and_not_its_encoding() -> None:
    tone = make_tone(0.2)
    flac, wav = encode_audio(tone, "flac", "flac", rate_hz=16000), make_wav(tone)
    opened = [open_audio(each, Allowance(MediaLimits()), rate_hz=16000) for each in (wav, flac)]
    assert opened[0].content_key != opened[1].content_key
    assert opened[0].decode().digest == opened[1].decode().digest
    assert opened[0].decode().size.num_samples == 3200 and opened[0].decode().size.audio_s == 0.2
    other_rate = open_audio(wav, Allowance(MediaLimits()), rate_hz=8000)
    assert other_rate.content_key != opened[0].content_key
    assert other_rate.decode().digest != opened[0].decode().digest


def test_a_file_that_is_cut_off_ends_there() -> None:
    wav = make_wav(make_tone(1.0))
    whole, part = load_audio(wav).samples, load_audio(wav[: len(wav) // 2]).samples
    assert 0 < len(part) < len(whole)
    np.testing.assert_array_equal(part, whole[: len(part)])
    mp3 = encode_audio(make_tone(1.0), "mp3", "libmp3lame", rate_hz=16000)
    assert 0 < len(load_audio(mp3[: len(mp3) // 2]).samples) < len(load_audio(mp3).samples)


def test_hostile_files_are_refused() -> None:
    wav = make_wav(make_tone(0.1))
    assert "not audio of a known kind" in _read_error(b"GIF89a" + bytes(100)).message
    assert "not audio of a known kind" in _read_error(b"").message
    assert "not audio of a known kind" in _read_error(b"#EXTM3U\nhttp://localhost/a.wav\n").message
    assert "cannot be decoded" in _read_error(wav[:20]).message
    assert "holds no samples" in _read_error(make_wav(np.zeros(0))).message
    for rate in (0, 1, 4_000_000_000):
        assert _read_error(wav[:24] + rate.to_bytes(4, "little") + wav[28:]).code.value == "invalid_media"
    for channels in (0, 4000):
        assert _read_error(wav[:22] + channels.to_bytes(2, "little") + wav[24:]).code.value == "invalid_media"
    for bad in (np.nan, np.inf, 1e30):
        samples = make_tone(0.1)
        samples[7] = bad
        assert "not finite" in _read_error(make_float_wav(samples)).message
        assert "not finite" in _read_error(AudioSamples(samples=samples, rate_hz=16000)).message
    assert "floats [S]" in _read_error(AudioSamples(samples=np.zeros((2, 8), np.float32), rate_hz=16000)).message
    assert "sampling rate" in _read_error(AudioSamples(samples=make_tone(0.1), rate_hz=3)).message


def test_damaged_bytes_never_raise_anything_else() -> None:
    rng = np.random.default_rng(0)
    files = [make_wav(make_tone(0.1))]
    files += [encode_audio(make_tone(0.1), *each, rate_hz=16000) for each in (("flac", "flac"), ("mp3", "libmp3lame"))]
    files += [encode_audio(make_tone(0.1), *each, rate_hz=48000) for each in (("ogg", "libopus"), ("webm", "libopus"))]
    files += [encode_audio(make_tone(0.1), *each, rate_hz=44100) for each in (("ipod", "aac"), ("adts", "aac"))]
    for number in range(350):
        data = np.frombuffer(files[number % 7], dtype=np.uint8).copy()
        places = rng.integers(0, min(len(data), 200 if number % 2 else len(data)), 8)
        data[places] = rng.integers(0, 256, 8)
        try:
            found = load_audio(data.tobytes(), rate_hz=16000, limits=MediaLimits(max_audio_s=100))
        except RequestError:
            continue
        assert np.isfinite(found.samples).all() and len(found.samples) <= 1_600_000


def test_the_sound_of_a_video_is_read() -> None:
    clip = make_video(make_tone(1.0, rate_hz=44100))
    found = load_audio(clip, rate_hz=16000)
    assert 0.9 < len(found.samples) / 16000 < 1.1 and np.abs(found.samples).max() > 0.3
    assert "there is no audio in it" in _read_error(make_video(None)).message


def test_length_is_limited_while_decoding() -> None:
    silence = np.zeros(60 * 48000, np.float32)
    bomb = encode_audio(silence, "flac", "flac", rate_hz=48000)
    assert len(bomb) < 60_000  # a minute in a few bytes
    started = time.process_time()
    error = _read_error(bomb, max_audio_s=5)
    assert error.code.value == "media_too_large" and "lasts more than 5 s" in error.message
    assert "max_audio_s" in error.message and time.process_time() - started < 5
    slow = make_wav(np.zeros(20_000), rate_hz=1000)  # 20 s, and 16 times as many samples at 16 kHz
    assert "lasts more than" in _read_error(slow, max_audio_s=19).message
    assert load_audio(slow, rate_hz=16000, limits=MediaLimits(max_audio_s=21)).samples.size > 300_000
    wide = make_wav(np.zeros((16_000, 32)), rate_hz=16000)  # one second of 512,000 values
    assert "values in all channels" in _read_error(wide, max_audio_s=1).message
    assert (
        "lasts more than 1 s" in _read_error(AudioSamples(samples=make_tone(2), rate_hz=16000), max_audio_s=1).message
    )
