"""Ultravox (https://github.com/fixie-ai/ultravox): audio in windows of 30 seconds through Whisper's encoder, eight of
whose rows become one, and the decoder of another model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.fields import read_count
from seesay.checkpoint.layouts.original_ultravox import ARCHITECTURE
from seesay.errors import CheckpointError
from seesay.processors.media.decoded import make_decoded_audio
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import AudioSamples, DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain
from seesay.vl.bases.tower_names import WHISPER_TOWER
from seesay.vl.family import Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.whisper import WhisperConfig

_RATE_HZ, _HOP, _FFT_SIZE, _NORM_EPS = 16_000, 160, 400, 1e-5
"""Of Whisper's feature extractor and encoder."""
_LEAST_HOPS = 2
_MARKER = "<|audio|>"
_LONG_WINDOWS = 8
"""Windows of the audio for which memory is planned; the tower takes no more together."""


class Ultravox(Family):
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
    modalities = (Modality.AUDIO,)
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

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        return ()

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        assert media.audio is not None
        samples = media.audio.samples
        return {**measures, "samples": np.pad(samples, (0, measures["num_frames"] * _HOP - len(samples)))}

    def largest_input(self) -> Features | None:
        silence = np.zeros(_LONG_WINDOWS * self._window * _HOP, dtype=np.float32)
        audio = make_decoded_audio(AudioSamples(samples=silence, rate_hz=_RATE_HZ))
        return self.preprocess(audio, self.measure(audio.modality, audio.size, {}))

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.whisper import WhisperEncoder

        tower = _make_tower(self.checkpoint, self._per_row // 2)
        return WhisperEncoder.load(tower, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype)


def _make_tower(checkpoint: Checkpoint, join: int) -> WhisperConfig:
    from seesay.encoders.towers.log_mel import MelConfig
    from seesay.encoders.towers.vit_layers import LayerConfig
    from seesay.encoders.towers.whisper import WhisperConfig

    audio, inner_size = checkpoint.model_config.audio_config, checkpoint.config.get("hidden_size", 4096)
    if type(inner_size) is not int or inner_size < 2 or inner_size % 2:
        raise CheckpointError(f"{checkpoint.path}: hidden_size must be an even number, got {str(inner_size)[:40]!r}")
    return WhisperConfig(
        layers=LayerConfig(
            hidden_size=audio.d_model,
            num_heads=audio.encoder_attention_heads,
            intermediate_size=audio.encoder_ffn_dim,
            activation=audio.activation_function,
            norm_eps=_NORM_EPS,
            has_key_bias=False,
        ),
        num_layers=audio.encoder_layers,
        mel=MelConfig(num_bins=audio.num_mel_bins, rate_hz=_RATE_HZ, fft_size=_FFT_SIZE, hop=_HOP),
        num_positions=audio.max_source_positions,
        join=join,
        inner_size=inner_size,
        out_hidden_size=checkpoint.model_config.text_config.hidden_size,
        activation="silu",
        is_gated=True,
        norms_outputs=not checkpoint.config.get("projector_ln_mid", False),
    )
