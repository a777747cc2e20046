"""Tiny models of `MODULE_CHECKPOINTS` that take pictures, videos and audio."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from grid_checkpoints import PATCHES, QWEN_TOKENS
from safetensors.torch import load_file, save_file

_VISION: dict[str, Any] = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4,
    "temporal_patch_size": 2, "spatial_merge_size": 2,
}  # fmt: skip
_AUDIO: dict[str, Any] = {
    "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
    "output_dim": 64,
}  # fmt: skip
OMNI_TOKENS: Mapping[str, str] = {
    **QWEN_TOKENS, "audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip
OMNI_IMAGE, OMNI_VIDEO, OMNI_AUDIO = (
    f"<|{begin}|><|{token}|><|{end}|>"
    for begin, token, end in (
        ("vision_start", "image_pad", "vision_end"),
        ("vision_start", "video_pad", "vision_end"),
        ("audio_bos", "AUDIO", "audio_eos"),
    )
)


def _token_ids(tokenizer: Any, suffix: str) -> dict[str, int]:
    return {
        **{f"{kind}_token_{suffix}": getattr(tokenizer, f"{kind}_token_id") for kind in ("image", "video", "audio")},
        "audio_start_token_id": tokenizer.audio_bos_token_id,
        "vision_start_token_id": tokenizer.vision_bos_token_id,
        "vision_end_token_id": tokenizer.vision_eos_token_id,
    }


def _processor(
    name: str, video_processor: Any, tokenizer: Any, statistics: dict[str, Any], *, chunk_length: int
) -> Any:
    settings = {**PATCHES, **statistics}
    return getattr(transformers, f"{name}Processor")(
        image_processor=transformers.Qwen2VLImageProcessor(
            size={"shortest_edge": 256, "longest_edge": 6400}, **settings
        ),
        video_processor=video_processor(size={"shortest_edge": 256, "longest_edge": 9216}, **settings),
        feature_extractor=transformers.WhisperFeatureExtractor(
            feature_size=16, chunk_length=chunk_length, sampling_rate=16000, n_fft=400
        ),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )


def write_qwen2_5_omni(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Positions of several axes, for audio too; windows of 200 ms in the tower of audio, and four patches in that of
    pictures."""
    config = transformers.Qwen2_5OmniThinkerConfig(
        text_config={
            **text,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
        },
        vision_config={**_VISION, "fullatt_block_indexes": [1], "window_size": 16},
        audio_config={**_AUDIO, "n_window": 10, "max_source_positions": 100},
        **_token_ids(tokenizer, "index"),
    )
    processor = _processor("Qwen2_5Omni", transformers.Qwen2VLVideoProcessor, tokenizer, statistics, chunk_length=6)
    return transformers.Qwen2_5OmniThinkerForConditionalGeneration(config), processor


def write_qwen3_omni(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Experts, rows of the tower's inner layers, and audio that is divided by the second."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = transformers.Qwen3OmniMoeThinkerConfig(
        text_config={
            **text, "num_hidden_layers": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_experts": 4,
            "head_dim": 16, "rope_parameters": rope,
        },
        vision_config={**_VISION, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]},
        audio_config={**_AUDIO, "n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 8},
        **_token_ids(tokenizer, "id"),
    )  # fmt: skip
    processor = _processor("Qwen3OmniMoe", transformers.Qwen2VLVideoProcessor, tokenizer, statistics, chunk_length=30)
    return transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config), processor


def publish_omni(path: Path) -> None:
    """Write the folder of a thinker as it is published: beside a model that speaks, of which a tensor stands here."""
    config = json.loads((path / "config.json").read_text())
    kind = config["model_type"].removesuffix("_thinker")
    whole = {
        "architectures": ["Qwen2_5OmniModel" if kind == "qwen2_5_omni" else "Qwen3OmniMoeForConditionalGeneration"],
        "model_type": kind, "thinker_config": config, "enable_audio_output": True, "dtype": config["dtype"],
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(whole))
    tensors = {f"thinker.{name}": tensor for name, tensor in load_file(path / "model.safetensors").items()}
    tensors["talker.model.norm.weight"] = torch.ones(8)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
