"""Families that take audio alone."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from seesay.processors.media.decoded import make_decoded_audio
from seesay.values import AudioSamples, DecodedMedia, MediaSize, Modality
from seesay.values.frame_chain import Chain
from seesay.vl.family import Family, Features

LONG_WINDOWS = 8
"""Windows of the audio for which memory is planned; Whisper's tower takes no more together."""


class AudioFamily(Family):
    """Features: `samples` float32 [S] of an audio, which may be filled up with silence, and the plan's measures."""

    modalities = (Modality.AUDIO,)

    @property
    @abstractmethod
    def num_planned_samples(self) -> int:
        """Samples of the audio for which memory is planned."""

    def count_samples(self, measures: Features) -> int | None:
        """Return to how many samples an audio is filled up; None: it is taken as it is."""
        return None

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        return ()

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        assert media.audio is not None
        samples = media.audio.samples
        if (num_samples := self.count_samples(measures)) is not None:
            samples = np.pad(samples, (0, num_samples - len(samples)))
        return {**measures, "samples": samples}

    def largest_input(self) -> Features | None:
        silence = np.zeros(self.num_planned_samples, dtype=np.float32)
        audio = make_decoded_audio(AudioSamples(samples=silence, rate_hz=self.audio_rate_hz))
        return self.preprocess(audio, self.measure(audio.modality, audio.size, {}))
