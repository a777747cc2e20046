"""Phi-4-multimodal (arXiv 2503.01743) in its Transformers form, with audio: a conformer and a Phi-3. Pictures are
refused. The weights that hear well are those of the adapter `speech-lora` beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.vl.bases.audio import AudioFamily
from seesay.vl.bases.pixels import read_processor
from seesay.vl.family import Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.audio.conformer import ConformerConfig

_PROCESSOR: Mapping[str, object] = {
    "sampling_rate": 16000, "hop_length": 160, "n_fft": 512, "win_length": 400, "preemphasis": 0.97,
    "audio_compression_rate": 8, "audio_downsample_rate": 1, "audio_feat_stride": 1, "mel_min_frequency": 0,
    "mel_max_frequency": 7690,
}  # fmt: skip
_TOWER: Mapping[str, object] = {
    "chunk_size": -1, "time_reduction": 8, "downsample_rate": 1, "depthwise_multiplier": 1, "nemo_activation": "relu",
    "conv_activation": "swish", "conv_glu_type": "swish", "activation": "swish",
}  # fmt: skip
"""Required settings of the processor and of the tower: nothing else is published."""
_FRAME, _HOP, _REDUCTION, _RATE_HZ = 400, 160, 8, 16_000
_LONG_S = 60
"""Duration of the audio for which memory is planned; a longer one is encoded piece by piece."""
_AUDIO = "model.embed_tokens_extend.audio_embed."


class Phi4Multimodal(AudioFamily):
    """Features: `samples` float32 [S] of an audio, and the plan's measures: `num_frames` of the spectrogram."""

    architectures = ("Phi4MultimodalForCausalLM",)
    published = (Published(decoder="phi4_multimodal", names=("microsoft/Phi-4-multimodal-instruct",)),)
    media_adapters = {Modality.AUDIO: "speech"}
    audio_rate_hz = _RATE_HZ
    transcription_prompt = "Transcribe the audio clip into text."
    weights = WeightMap(
        decoder={"model.": "", "lm_head.": "lm_head."},
        tower={_AUDIO: ""},
        ignored=(
            "model.embed_tokens_extend.image_embed.",
            f"{_AUDIO}up_proj_for_vision_speech.",
            f"{_AUDIO}down_proj_for_vision_speech.",
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        where, audio = checkpoint.path, checkpoint.model_config.audio_config
        settings = read_processor(checkpoint, "audio_processor")
        for name, expected in _PROCESSOR.items():
            if (found := settings.get(name, expected)) != expected:
                raise CheckpointError(f"{where}: processor setting {name} must be {expected}, got {str(found)[:40]}")
        for name, expected in {**_TOWER, "input_size": settings.get("feature_size", 80)}.items():
            if (found := getattr(audio, name)) != expected:
                raise CheckpointError(f"{where}: audio_config.{name} must be {expected}, got {str(found)[:40]}")
        sizes = ("ext_pw_out_channel", "depthwise_separable_out_channel")
        if any(getattr(audio, name) != audio.hidden_size for name in sizes):
            raise CheckpointError(f"{where}: audio_config: {' and '.join(sizes)} must be {audio.hidden_size}")
        self._token: int = audio.audio_token_id
        self._markers = {Modality.AUDIO: self.token_text(self._token)}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def spellings(self) -> Mapping[Modality, str]:
        return {Modality.AUDIO: r"<\|audio_\d+\|>"}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        if size.num_samples < _FRAME:
            _refuse(size)
        num_frames = (size.num_samples - _FRAME) // _HOP + 1
        return {"num_frames": num_frames, "num_tiles": 1, "resized": (size.height, size.width)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self._token] * self.num_units(measures), True))

    def num_units(self, measures: Features) -> int:
        return -(-int(measures["num_frames"]) // _REDUCTION)

    @property
    def num_planned_samples(self) -> int:
        return _LONG_S * _RATE_HZ

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.audio.conformer import ConformerEncoder

        config = _make_tower(self.checkpoint.model_config)
        return ConformerEncoder.load(config, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype)


def _refuse(size: MediaSize) -> NoReturn:
    message = f"audio of {size.audio_s:.3f} s is too short for this model, which takes {_FRAME / _RATE_HZ} s or more"
    raise RequestError(ErrorCode.INVALID_MEDIA, message, "messages")


def _make_tower(config: Any) -> ConformerConfig:
    from seesay.encoders.towers.audio.conformer import ConformerConfig

    audio = config.audio_config
    return ConformerConfig(
        hidden_size=audio.hidden_size,
        intermediate_size=audio.intermediate_size,
        num_layers=audio.num_blocks,
        num_heads=audio.num_attention_heads,
        activation="silu",
        num_bins=audio.input_size,
        rate_hz=_RATE_HZ,
        conv_channels=audio.nemo_conv_channels,
        kernel=audio.kernel_size,
        max_distance=audio.bias_max_distance,
        is_symmetric=audio.bias_symmetric,
        out_hidden_size=config.hidden_size,
    )
