"""Log-mel spectrograms of audio, as Whisper's feature extractor makes them (arXiv 2212.04356, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_HIGHEST_HZ = 8000.0
_LEAST_POWER = 1e-10
_RANGE = 8.0
"""Decibels by ten below the loudest value of the audio that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MelConfig:
    """num_bins: mel bins of a frame, up to 8 kHz. fft_size, hop: samples that a frame sees, and between two frames."""

    num_bins: int
    rate_hz: int
    fft_size: int
    hop: int


class LogMel:
    """Computes the frames float32 [S / hop, num_bins] of samples float32 [S], a whole number of hops, on `device`."""

    def __init__(self, config: MelConfig, device: torch.device) -> None:
        from transformers.audio_utils import mel_filter_bank

        self.config = config
        filters = mel_filter_bank(
            num_frequency_bins=1 + config.fft_size // 2,
            num_mel_filters=config.num_bins,
            min_frequency=0.0,
            max_frequency=_HIGHEST_HZ,
            sampling_rate=config.rate_hz,
            norm="slaney",
            mel_scale="slaney",
        )
        self._filters = torch.from_numpy(filters.T.copy()).to(device, torch.float32)
        self._window = torch.hann_window(config.fft_size, device=device, dtype=torch.float32)

    def __call__(self, samples: Tensor) -> Tensor:
        config = self.config
        spectrum = torch.stft(samples, config.fft_size, config.hop, window=self._window, return_complex=True)
        powers = spectrum[:, :-1].abs().square_().contiguous()
        levels = (self._filters @ powers).clamp_(min=_LEAST_POWER).log10_()
        levels = torch.maximum(levels, levels.max() - _RANGE)
        return levels.add_(4.0).div_(4.0).t()
