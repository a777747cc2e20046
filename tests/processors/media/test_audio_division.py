"""Audio is divided where it is quiet, into pieces of a model's window at most, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seesay.processors.media.audio_division import divide_audio
from seesay.values import AudioSamples


@given(st.integers(0, 5000), st.integers(1, 700), st.sampled_from([10, 100, 16000]))
def test_nothing_is_lost_and_no_piece_is_too_long(length: int, most: int, rate_hz: int) -> None:
    samples = np.random.default_rng(length).normal(0, 0.1, length).astype(np.float32)
    pieces = divide_audio(AudioSamples(samples=samples, rate_hz=rate_hz), most)
    assert np.array_equal(np.concatenate([piece.samples for piece in pieces]), samples)
    assert all(len(piece.samples) <= most and piece.rate_hz == rate_hz for piece in pieces)
    assert len(pieces) == 1 or all(len(piece.samples) >= most // 10 for piece in pieces)
    assert len(pieces) <= max(1, 1 + length // max(1, most - most // 5))


@pytest.mark.parametrize("pause_s", [1.65, 1.8, 1.94])
def test_the_cut_is_in_a_pause(pause_s: float) -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(0, 0.3, 3 * 16000).astype(np.float32)
    start, end = int(pause_s * 16000), int((pause_s + 0.05) * 16000)
    samples[start:end] *= 0.01
    first, second = divide_audio(AudioSamples(samples=samples, rate_hz=16000), 2 * 16000)
    assert start <= len(first.samples) <= end and len(second.samples) == len(samples) - len(first.samples)


def test_without_a_window_it_stays_whole() -> None:
    audio = AudioSamples(samples=np.zeros(100, np.float32), rate_hz=16000)
    assert divide_audio(audio, 0) == [audio]
