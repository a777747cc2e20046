"""Tiny models of `MODULE_CHECKPOINTS` whose tokens have positions of several axes, for grids of patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers

PATCHES: dict[str, Any] = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
_TOWER: dict[str, Any] = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4,
    "temporal_patch_size": 2, "spatial_merge_size": 2,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
QWEN_TOKENS: Mapping[str, str] = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}  # fmt: skip
GLM_TOKENS: Mapping[str, str] = {
    "image_token": "<|image|>", "video_token": "<|video|>", "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>", "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
}  # fmt: skip
PADDLE_TOKENS: Mapping[str, str] = {
    "image_token": "<|IMAGE_PLACEHOLDER|>", "vision_start_token": "<|IMAGE_START|>",
    "vision_end_token": "<|IMAGE_END|>",
}  # fmt: skip
HUNYUAN_TOKENS: Mapping[str, str] = {
    "image_token": "<img>", "image_start_token": "<img_start>", "image_end_token": "<img_end>",
}  # fmt: skip


def _rope(*sections: int, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [*sections], **more}}


def _ids(tokenizer: Any, names: Mapping[str, str]) -> dict[str, int]:
    return {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in names}


def write_qwen3_vl_moe(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Experts, and rows of the tower's inner layers for the first layers of the decoder."""
    settings = {**PATCHES, **statistics}
    config = transformers.Qwen3VLMoeConfig(
        text_config={
            **text, **_EXPERTS, "num_hidden_layers": 3, "head_dim": 16, "num_experts": 4, "decoder_sparse_step": 1,
            **_rope(4, 2, 2, mrope_interleaved=True),
        },
        vision_config={**_TOWER, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]},
        image_token_id=tokenizer.image_token_id, video_token_id=tokenizer.video_token_id,
        vision_start_token_id=tokenizer.vision_bos_token_id, vision_end_token_id=tokenizer.vision_eos_token_id,
    )  # fmt: skip
    processor = transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(
            size={"shortest_edge": 256, "longest_edge": 6400}, **settings
        ),
        video_processor=transformers.Qwen3VLVideoProcessor(
            size={"shortest_edge": 256, "longest_edge": 9216}, **settings
        ),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.Qwen3VLMoeForConditionalGeneration(config), processor


def write_glm4v_moe(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """As GLM-4.5V and GLM-4.6V are published: experts behind a dense layer, a part of each head is turned."""
    more = {
        **_EXPERTS, "n_routed_experts": 4, "head_dim": 16, "first_k_dense_replace": 1,
        **_rope(2, 1, 1, partial_rotary_factor=0.5),
    }  # fmt: skip
    return _write_glm("Glm4vMoe", tokenizer, {**text, **more}, statistics)


def write_glm_ocr(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    more = {"head_dim": 16, **_rope(4, 2, 2, partial_rotary_factor=1.0)}
    return _write_glm("GlmOcr", tokenizer, {**text, **more}, statistics)


def _write_glm(name: str, tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config={**_TOWER, "image_size": 20}, tie_word_embeddings=False,
        **_ids(tokenizer, GLM_TOKENS),
    )  # fmt: skip
    settings = {**PATCHES, **statistics}
    processor = transformers.Glm46VProcessor(
        image_processor=transformers.Glm46VImageProcessor(
            size={"shortest_edge": 512, "longest_edge": 12800}, **settings
        ),
        video_processor=transformers.Glm46VVideoProcessor(
            size={"shortest_edge": 256, "longest_edge": 9216}, **settings
        ),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), processor


def write_paddleocr_vl(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    config = transformers.PaddleOCRVLConfig(
        text_config={**text, "head_dim": 16, **_rope(2, 3, 3)},
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "patch_size": 4, "image_size": 20, "spatial_merge_size": 2,
        },
        image_token_id=tokenizer.image_token_id, tie_word_embeddings=False,
        vision_start_token_id=tokenizer.vision_start_token_id, vision_end_token_id=tokenizer.vision_end_token_id,
    )  # fmt: skip
    processor = transformers.PaddleOCRVLProcessor(
        image_processor=transformers.PaddleOCRVLImageProcessor(
            size={"shortest_edge": 256, "longest_edge": 6400}, patch_size=4, merge_size=2, **statistics
        ),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.PaddleOCRVLForConditionalGeneration(config), processor


def write_hunyuan_vl(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """As HunyuanOCR is published: positions of four axes, and rows for the ends of lines and of the picture."""
    config = transformers.HunYuanVLConfig(
        text_config={
            **text, "head_dim": 16,
            "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 1000.0,
                "mrope_section": [2, 2, 2, 2],
            },
        },
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "out_hidden_size": 64, "patch_size": 4, "spatial_merge_size": 2, "text_hidden_size": 64,
            "max_image_size": 160, "min_image_size": 16,
        },
        image_token_id=tokenizer.image_token_id, im_start_id=tokenizer.image_start_token_id,
        im_end_id=tokenizer.image_end_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    processor = transformers.HunYuanVLProcessor(
        image_processor=transformers.HunYuanVLImageProcessor(
            size={"shortest_edge": 256, "longest_edge": 6400}, patch_size=4, merge_size=2, **statistics
        ),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.HunYuanVLForConditionalGeneration(config), processor
