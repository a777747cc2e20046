"""Tiny models that take audio and run through Transformers' modules: `MODULE_CHECKPOINTS` of them."""

from __future__ import annotations

from typing import Any

import transformers

_TOWER: dict[str, Any] = {"num_mel_bins": 16, "max_source_positions": 100}
_WHISPER: dict[str, Any] = {"feature_size": 16, "chunk_length": 2, "sampling_rate": 16000, "n_fft": 400}


def write_qwen2_audio(tokenizer: Any, text: dict[str, Any], _: dict[str, Any]) -> tuple[Any, Any]:
    """Windows of two seconds, of which each row has four steps of 10 ms."""
    config = transformers.Qwen2AudioConfig(
        audio_config={
            **_TOWER, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
        },
        text_config={"model_type": "qwen2", **text}, audio_token_index=tokenizer.audio_token_id,
    )  # fmt: skip
    processor = transformers.Qwen2AudioProcessor(
        feature_extractor=transformers.WhisperFeatureExtractor(**_WHISPER), tokenizer=tokenizer,
        chat_template=tokenizer.chat_template, audio_token="<|AUDIO|>",
    )  # fmt: skip
    return transformers.Qwen2AudioForConditionalGeneration(config), processor


def write_glm_asr(tokenizer: Any, text: dict[str, Any], _: dict[str, Any]) -> tuple[Any, Any]:
    """Rotary positions in the tower; a bare Llama behind it."""
    config = transformers.GlmAsrConfig(
        audio_config={
            **_TOWER, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        },
        text_config={"model_type": "llama", **text}, audio_token_id=tokenizer.audio_token_id,
    )  # fmt: skip
    processor = transformers.GlmAsrProcessor(
        feature_extractor=transformers.WhisperFeatureExtractor(**_WHISPER, return_attention_mask=True),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template, audio_token="<|pad|>",
    )  # fmt: skip
    return transformers.GlmAsrForConditionalGeneration(config), processor
