"""Voxtral (arXiv 2507.13264): audio in windows of 30 seconds through Whisper's encoder, four of whose rows become one,
and a Llama."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.vl.bases.audio import LONG_WINDOWS, AudioFamily
from seesay.vl.bases.pixels import read_count, read_processor
from seesay.vl.bases.tower_names import WHISPER_TOWER
from seesay.vl.constants import AUDIO_TOKEN
from seesay.vl.family import Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, NESTED_PREFIXES, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_AUDIO_TOKEN = 24
"""The id in every tokenizer of Mistral's."""
_WINDOW_S = 30
"""As the published processor has it, whatever the settings say."""
_TRANSCRIPT_S = 30 * 60
"""Duration of audio up to which the model was trained to write it down at once."""


class Voxtral(AudioFamily):
    """Features: `samples` float32 [S] of whole windows, filled up with silence, and the plan's measures; `num_tiles`
    are windows."""

    architectures = ("VoxtralForConditionalGeneration",)
    published = (
        Published(decoder="llama", names=("mistralai/Voxtral-Mini-3B-2507", "mistralai/Voxtral-Small-24B-2507")),
    )
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            **{prefix + "audio_tower.": "" for prefix in NESTED_PREFIXES},
            **{prefix + "multi_modal_projector.": "projector." for prefix in NESTED_PREFIXES},
        },
        tower_patterns=WHISPER_TOWER,
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        audio = config.audio_config
        settings = read_processor(checkpoint, "feature_extractor")
        self._mel = {
            "num_bins": read_count(settings, "feature_size", 80, most=1024, where=where),
            "rate_hz": read_count(settings, "sampling_rate", 16000, most=768_000, where=where),
            "fft_size": read_count(settings, "n_fft", 400, most=1 << 16, where=where),
            "hop": read_count(settings, "hop_length", 160, most=1 << 16, where=where),
        }
        self.audio_rate_hz = self._mel["rate_hz"]
        self.max_transcribed_samples = _TRANSCRIPT_S * self.audio_rate_hz
        self._window = _WINDOW_S * self.audio_rate_hz
        self._num_positions: int = audio.max_source_positions
        self._join = _find_join(audio, where)
        for name, found, wanted in (
            ("feature_size", self._mel["num_bins"], audio.num_mel_bins),
            ("hop_length", 2 * self._num_positions * self._mel["hop"], self._window),
        ):
            if found != wanted:
                raise CheckpointError(
                    f"{where}: processor setting {name} does not fit the tower: it makes {found} of what must be "
                    f"{wanted}"
                )
        token = config.audio_token_id
        self._audio_token: int = _AUDIO_TOKEN if token is None else token
        self._begin_token = self.token_id("[BEGIN_AUDIO]")
        self._markers = {Modality.AUDIO: self.token_text(self._audio_token)}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def spellings(self) -> Mapping[Modality, str]:
        token = re.escape(self._markers[Modality.AUDIO])
        return {Modality.AUDIO: rf"(?:\[BEGIN_AUDIO\])?(?:{token})+"}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"mel": self._mel, "positions": self._num_positions}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        num_windows = -(-size.num_samples // self._window)
        return {"num_tiles": num_windows, "resized": (size.height, size.width)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        num_rows = measures["num_tiles"] * self._num_positions // self._join
        return make_expansion(([self._begin_token], False), ([self._audio_token] * num_rows, True))

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self._num_positions

    @property
    def num_planned_samples(self) -> int:
        return LONG_WINDOWS * self._window

    def count_samples(self, measures: Features) -> int | None:
        return int(measures["num_tiles"] * self._window)

    def write_transcription(self, language: str | None) -> str | None:
        spoken = "" if language is None else f"lang:{language}"
        return f"[INST]{AUDIO_TOKEN}[/INST]{spoken}[TRANSCRIBE]"

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.audio.log_mel import MelConfig
        from seesay.encoders.towers.audio.whisper import WhisperConfig, WhisperEncoder

        config = self.checkpoint.model_config
        tower = WhisperConfig.of(
            config.audio_config,
            mel=MelConfig(**self._mel),
            join=self._join,
            inner_size=config.text_config.hidden_size,
            out_hidden_size=config.text_config.hidden_size,
            activation=config.projector_hidden_act,
        )
        return WhisperEncoder.load(tower, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype)


def _find_join(audio: Any, where: object) -> int:
    """Return how many rows of the encoder become one: as many as the projector's input has room for."""
    join: int
    join, rest = divmod(audio.intermediate_size, audio.hidden_size)
    if rest or not join or audio.max_source_positions % join:
        raise CheckpointError(
            f"{where}: audio_config with hidden_size={audio.hidden_size}, intermediate_size={audio.intermediate_size} "
            f"and max_source_positions={audio.max_source_positions} is not supported"
        )
    return join
