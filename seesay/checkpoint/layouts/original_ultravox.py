"""Ultravox as its authors publish it: Whisper's encoder, a projector, and the name of the model whose decoder it has.
Read as a Qwen2-Audio of Transformers, whose encoder has the same sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import check_fields, read_part

ARCHITECTURE = "UltravoxModel"
_WHISPER: Mapping[str, object] = {
    "activation_function": "gelu", "d_model": 384, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
    "encoder_layers": 4, "max_source_positions": 1500, "num_mel_bins": 80, "scale_embedding": False,
}  # fmt: skip
"""The fields of Whisper's configuration that its encoder has, and what they are where a file leaves them out."""
_PROJECTOR = ("hidden_size", "norm_init", "projector_act", "projector_ln_mid", "stack_factor")


def read_ultravox(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of encoder and decoder. Raises `CheckpointError` naming a field that is not
    supported."""
    audio = read_part(config, "audio_config")
    check_fields(config, {"llm_only_training": False, "audio_latency_block_size": 0, "projector_act": "swiglu"})
    check_fields(audio, {"model_type": "whisper", "scale_embedding": False}, where="audio_config.")
    kept = {name: config[name] for name in ("dtype", "torch_dtype", "eos_token_id") if name in config}
    sizes = {name: usual if audio.get(name) is None else audio[name] for name, usual in _WHISPER.items()}
    return {
        **kept,
        "architectures": [ARCHITECTURE],
        "model_type": "qwen2_audio",
        "audio_config": {**sizes, "model_type": "qwen2_audio_encoder"},
        "text_config": dict(read_part(config, "text_config")),
    }
