"""Ultravox (https://github.com/fixie-ai/ultravox): audio in windows of 30 seconds through Whisper's encoder, eight of
whose rows become one, and the decoder of another model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.fields import read_count
from seesay.checkpoint.layouts.original_ultravox import ARCHITECTURE
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.vl.bases.audio import LONG_WINDOWS, AudioFamily
from seesay.vl.bases.tower_names import WHISPER_TOWER
from seesay.vl.family import Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.audio.whisper import WhisperConfig

_RATE_HZ, _HOP, _FFT_SIZE = 16_000, 160, 400
"""Of Whisper's feature extractor."""
_LEAST_HOPS = 2
_MARKER = "<|audio|>"


class Ultravox(AudioFamily):
    """Features: `samples` float32 [S] of whole hops, filled up with silence, and the plan's measures: `num_frames` of
    the spectrogram; `num_tiles` are windows."""

    architectures = (ARCHITECTURE,)
    published = (
        Published(
            decoder="llama",
            names=("fixie-ai/ultravox-v0_5-llama-3_2-1b", "fixie-ai/ultravox-v0_5-llama-3_1-8b"),
        ),
        Published(decoder="qwen3", names=("fixie-ai/ultravox-v0_6-qwen-3-32b",)),
    )
    audio_rate_hz = _RATE_HZ
    weights = WeightMap(
        decoder={"language_model.model.": "", "language_model.lm_head.": "lm_head."},
        tower={"audio_tower.": "", "multi_modal_projector.": "projector."},
        tower_patterns=WHISPER_TOWER,
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        self._window: int = 2 * checkpoint.model_config.audio_config.max_source_positions
        self._per_row = 2 * read_count({"stack_factor": 8, **checkpoint.config}, "stack_factor", most=self._window)
        token = tokenizer.eos_token_id
        if token is None:
            raise CheckpointError(f"{checkpoint.path}: the tokenizer has no EOS, which takes the rows of audio")
        self._row_token = token

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.AUDIO: _MARKER}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"window": self._window, "per_row": self._per_row}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        num_frames = max(_LEAST_HOPS, -(-size.num_samples // _HOP))
        num_tiles = -(-num_frames // self._window)
        return {"num_frames": num_frames, "num_tiles": num_tiles, "resized": (size.height, size.width)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        whole, rest = divmod(measures["num_frames"], self._window)
        num_rows = whole * -(-self._window // self._per_row) + -(-rest // self._per_row)
        return make_expansion(([self._row_token] * num_rows, True))

    def num_units(self, measures: Features) -> int:
        return -(-int(measures["num_frames"]) // 2)

    @property
    def num_planned_samples(self) -> int:
        return LONG_WINDOWS * self._window * _HOP

    def count_samples(self, measures: Features) -> int | None:
        return int(measures["num_frames"] * _HOP)

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.audio.whisper import WhisperEncoder

        tower = _make_tower(self.checkpoint, self._per_row // 2)
        return WhisperEncoder.load(tower, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype)


def _make_tower(checkpoint: Checkpoint, join: int) -> WhisperConfig:
    from seesay.encoders.towers.audio.log_mel import MelConfig
    from seesay.encoders.towers.audio.whisper import WhisperConfig

    audio, inner_size = checkpoint.model_config.audio_config, checkpoint.config.get("hidden_size", 4096)
    if type(inner_size) is not int or inner_size < 2 or inner_size % 2:
        raise CheckpointError(f"{checkpoint.path}: hidden_size must be an even number, got {str(inner_size)[:40]!r}")
    return WhisperConfig.of(
        audio,
        mel=MelConfig(num_bins=audio.num_mel_bins, rate_hz=_RATE_HZ, fft_size=_FFT_SIZE, hop=_HOP),
        join=join,
        inner_size=inner_size,
        out_hidden_size=checkpoint.model_config.text_config.hidden_size,
        activation="silu",
        is_gated=True,
        norms_outputs=not checkpoint.config.get("projector_ln_mid", False),
    )
