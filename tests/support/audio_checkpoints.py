"""Tiny models that take audio and run through Transformers' modules: `MODULE_CHECKPOINTS` of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
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


def write_phi4_multimodal(path: Path) -> None:
    """Rows are 80 ms; distances beyond six rows have the same bias. Half of a head is turned by its position."""
    from vl.checkpoints import CHATML, QWEN_TEXT, make_tokenizer, save_model

    image, audio = "<|endoftext10|>", "<|endoftext11|>"
    template = CHATML.replace("@image@", image).replace("@audio@", audio)
    tokenizer = make_tokenizer(template, image_token=image, audio_token=audio)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = transformers.Phi4MultimodalConfig(
        **QWEN_TEXT, **ids, vocab_size=288, rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        },
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14, "crop_size": 28, "image_token_id": tokenizer.image_token_id,
        },
        audio_config={
            "hidden_size": 32, "intermediate_size": 48, "num_blocks": 2, "num_attention_heads": 2, "input_size": 20,
            "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 12,
            "bias_max_distance": 6, "audio_token_id": tokenizer.audio_token_id,
        },
    )  # fmt: skip
    model = transformers.Phi4MultimodalForCausalLM(config)
    scales = model.model.embed_tokens_extend.audio_embed.encoder.encoder_embedding
    scales.global_mean.copy_(torch.linspace(4.0, 9.0, 20))
    scales.global_invstd.copy_(torch.linspace(0.6, 0.2, 20))
    save_model(model, path)
    transformers.Phi4MultimodalProcessor(
        image_processor=transformers.Phi4MultimodalImageProcessor(size={"height": 28, "width": 28}, patch_size=14),
        audio_processor=transformers.Phi4MultimodalFeatureExtractor(feature_size=20),
        tokenizer=tokenizer, chat_template=template,
    ).save_pretrained(path)  # fmt: skip
