"""Tiny vision-language models that run through Transformers' modules: their special tokens, model and processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers
from audio_checkpoints import write_glm_asr, write_qwen2_audio
from grid_checkpoints import (
    GLM_TOKENS,
    HUNYUAN_TOKENS,
    PADDLE_TOKENS,
    QWEN_TOKENS,
    write_glm4v_moe,
    write_glm_ocr,
    write_hunyuan_vl,
    write_paddleocr_vl,
    write_qwen3_vl_moe,
)
from omni_checkpoints import (
    OMNI_AUDIO,
    OMNI_IMAGE,
    OMNI_TOKENS,
    OMNI_VIDEO,
    write_qwen2_5_omni,
    write_qwen3_omni,
)
from transformers import CLIPVisionConfig, LlamaConfig, PixtralVisionConfig, SiglipVisionConfig

Write = Callable[[Any, dict[str, Any], dict[str, Any]], tuple[Any, Any]]
"""(tokenizer, options of a text configuration, statistics of pixels) to model and processor."""
_VIT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": 4,
}
_RESOLUTIONS = [[8, 16], [16, 8], [16, 16]]


@dataclass(frozen=True, slots=True)
class ModuleCheckpoint:
    """marker: what stands for a picture in the chat template, video for a video, and audio for audio. special: tokens
    by the attribute name they get. embedding_size: of the components of token embeddings.
    more_merges: of the tokenizer."""

    marker: str
    write: Write
    special: Mapping[str, str] = field(default_factory=dict)
    plain: tuple[str, ...] = ()
    has_bos: bool = False
    video: str = ""
    audio: str = ""
    embedding_size: float = 1.0
    more_merges: str = ""


def _tiles(**sizes: Any) -> Any:
    return transformers.GotOcr2ImageProcessor(crop_to_patches=True, min_patches=1, max_patches=4, **sizes)


def _aya_vision(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Tiles of 24 pixels, up to four, with 3 x 3 rows each and a numbered token before each."""
    config = transformers.AyaVisionConfig(
        vision_config=SiglipVisionConfig(**_VIT, image_size=24, vision_use_head=False),
        text_config=transformers.Cohere2Config(**text, head_dim=16, sliding_window=32, sliding_window_pattern=2),
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"), adapter_layer_norm_eps=1e-6,
    )  # fmt: skip
    processor = transformers.AyaVisionProcessor(
        image_processor=_tiles(size={"height": 24, "width": 24}, **statistics),
        tokenizer=tokenizer, patch_size=4, img_size=24, downsample_factor=2, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.AyaVisionForConditionalGeneration(config), processor


def _cohere2_vision(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    config = transformers.Cohere2VisionConfig(
        vision_config=SiglipVisionConfig(**_VIT, image_size=24, vision_use_head=False),
        text_config=transformers.Cohere2Config(**text, head_dim=16, sliding_window=32, sliding_window_pattern=2),
        image_token_id=tokenizer.image_token_id, alignment_intermediate_size=64,
    )  # fmt: skip
    processor = transformers.Cohere2VisionProcessor(
        image_processor=transformers.Cohere2VisionImageProcessor(
            size={"height": 24, "width": 24}, patch_size=3, downsample_factor=2, min_patches=1, max_patches=4,
            **statistics,
        ),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.Cohere2VisionForConditionalGeneration(config), processor


def _vipllava(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Rows are made of several layers of the tower."""
    config = transformers.VipLlavaConfig(
        vision_config=CLIPVisionConfig(**_VIT, image_size=20), text_config=LlamaConfig(**text),
        image_token_index=tokenizer.image_token_id, vision_feature_layers=[-1, -2, 0], image_seq_length=25,
    )  # fmt: skip
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessor(
            size={"shortest_edge": 20}, crop_size={"height": 20, "width": 20}, **statistics
        ),
        tokenizer=tokenizer, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.VipLlavaForConditionalGeneration(config), processor


def _llava_next_video(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Tiles without padding, a learned row behind each line."""
    config = transformers.LlavaNextVideoConfig(
        vision_config=CLIPVisionConfig(**_VIT, image_size=8), text_config=LlamaConfig(**text),
        image_token_index=tokenizer.image_token_id, video_token_index=tokenizer.video_token_id,
        image_grid_pinpoints=_RESOLUTIONS, image_seq_length=4,
    )  # fmt: skip
    processor = transformers.LlavaNextVideoProcessor(
        image_processor=transformers.LlavaNextImageProcessor(
            size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8}, image_grid_pinpoints=_RESOLUTIONS,
            **statistics,
        ),
        video_processor=transformers.LlavaNextVideoVideoProcessor(
            size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8}
        ),
        tokenizer=tokenizer, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.LlavaNextVideoForConditionalGeneration(config), processor


def _lighton_ocr(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Pictures of any size, with rotary positions in the tower."""
    config = transformers.LightOnOcrConfig(
        vision_config=PixtralVisionConfig(**_VIT, image_size=160, head_dim=16),
        text_config=transformers.Qwen3Config(**text, head_dim=16),
        image_token_id=tokenizer.image_token_id, spatial_merge_size=2, tie_word_embeddings=False,
    )  # fmt: skip
    processor = transformers.LightOnOcrProcessor(
        image_processor=transformers.PixtralImageProcessor(
            size={"longest_edge": 160}, patch_size={"height": 8, "width": 8}, **statistics
        ),
        tokenizer=tokenizer, patch_size=4, spatial_merge_size=2, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.LightOnOcrForConditionalGeneration(config), processor


def _aria(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Experts in the decoder; queries that attend to the patches inside of a picture."""
    config = transformers.AriaConfig(
        vision_config=transformers.Idefics3VisionConfig(**{**_VIT, "patch_size": 140}, image_size=980),
        text_config=transformers.AriaTextConfig(**text, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1),
        image_token_index=tokenizer.image_token_id, projector_patch_to_query_dict={49: 9}, vision_feature_layer=-1,
    )  # fmt: skip
    processor = transformers.AriaProcessor(
        image_processor=transformers.AriaImageProcessor(
            max_image_size=980, min_image_size=336, split_image=False, **statistics
        ),
        tokenizer=tokenizer, size_conversion={980: 9}, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.AriaForConditionalGeneration(config), processor


def _qianfan_ocr(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """The text that stands for a picture is another token than the one that takes rows."""
    sides = {**_VIT, "patch_size": [4, 4], "image_size": [24, 24]}
    config = transformers.QianfanOCRConfig(
        vision_config=sides, text_config=transformers.Qwen3Config(**text, head_dim=16),
        image_token_id=tokenizer.context_image_token_id, image_seq_length=9,
    )  # fmt: skip
    processor = transformers.QianfanOCRProcessor(
        image_processor=_tiles(size={"height": 24, "width": 24}, **statistics), tokenizer=tokenizer,
        image_seq_length=9, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    return transformers.QianfanOCRForConditionalGeneration(config), processor


def _gemma4(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """Embeddings for each layer, which are looked up by ids; pictures of any shape; layers that share keys and
    values."""
    options = {
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
    }  # fmt: skip
    return _write_gemma4(tokenizer, {**text, **options}, statistics, {})


def _gemma4_small(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """As E2B and E4B are published: one head of keys, wider feed-forwards in the layers that share keys and values,
    limits of the tower's activations."""
    options = {
        "num_hidden_layers": 7,
        "layer_types": [*["sliding_attention", "sliding_attention", "full_attention"] * 2, "full_attention"],
        "num_key_value_heads": 1, "num_kv_shared_layers": 3, "hidden_size_per_layer_input": 8,
        "use_double_wide_mlp": True, "final_logit_softcapping": 30.0,
    }  # fmt: skip
    return _write_gemma4(tokenizer, {**text, **options}, statistics, {"use_clipped_linears": True})


def _gemma4_audio(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """As E2B and E4B are published, with the tower of audio: convolutions and attention in pieces of 120 ms."""
    options = {
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
    }  # fmt: skip
    audio = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "subsampling_conv_channels": [16, 4],
        "output_proj_dims": 32, "attention_chunk_size": 3, "attention_context_left": 4,
    }  # fmt: skip
    return _write_gemma4(tokenizer, {**text, **options}, statistics, {}, audio)


def _gemma4_large(tokenizer: Any, text: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, Any]:
    """As 31B and 26B-A4B are published: tokens of a picture see each other in the layers with a window, keys are values
    in the others, and experts stand beside the feed-forward. Nothing is looked up for each layer or shared."""
    options = {
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
        "num_global_key_value_heads": 1, "final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision",
        "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
    }  # fmt: skip
    return _write_gemma4(tokenizer, {**text, **options}, statistics, {"standardize": True})


def _write_gemma4(
    tokenizer: Any,
    text: dict[str, Any],
    statistics: dict[str, Any],
    vision: dict[str, Any],
    audio: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    config = transformers.Gemma4Config(
        vision_config={
            **_VIT, "num_key_value_heads": 2, "head_dim": 16, "pooling_kernel_size": 3, "position_embedding_size": 1024,
            **vision,
        },
        text_config=transformers.Gemma4TextConfig(
            **text, head_dim=16, global_head_dim=32, sliding_window=32, vocab_size_per_layer_input=text["vocab_size"],
        ),
        audio_config=audio, image_token_id=tokenizer.image_token_id, video_token_id=tokenizer.video_token_id,
        audio_token_id=tokenizer.audio_token_id, boi_token_id=tokenizer.boi_token_id,
        eoi_token_id=tokenizer.eoi_token_id,
    )  # fmt: skip
    processor = transformers.Gemma4Processor(
        feature_extractor=transformers.Gemma4AudioFeatureExtractor(feature_size=16),
        image_processor=transformers.Gemma4ImageProcessor(
            patch_size=4, max_soft_tokens=70, pooling_kernel_size=3, **statistics
        ),
        tokenizer=tokenizer,
        video_processor=transformers.Gemma4VideoProcessor(patch_size=4, pooling_kernel_size=3),
        chat_template=tokenizer.chat_template,
    )
    return transformers.Gemma4ForConditionalGeneration(config), processor


def _gemma3n(tokenizer: Any, text: dict[str, Any], _: dict[str, Any]) -> tuple[Any, Any]:
    """As E2B and E4B are published: MobileNet-v5 of timm, a tower of audio, layers that share keys and values, sparse
    activations, embeddings for each layer, four streams beside each other (AltUp); and the tokens behind pictures and
    audio, and in their places, have tables of their own."""
    ids = [tokenizer.convert_tokens_to_ids(token) for token in _GEMMA3N_TOKENS.values()]
    assert ids == list(range(ids[0], ids[0] + len(ids))), "in the order in which the tables have them"
    _, _, first_vision, _, first_audio, _ = ids
    config = transformers.Gemma3nConfig(
        text_config=transformers.Gemma3nTextConfig(**{
            **text, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2, "head_dim": 16, "sliding_window": 32, "laurel_rank": 4,
            "vocab_size_per_layer_input": first_vision, "hidden_size_per_layer_input": 8,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        }),
        vision_config={
            "model_type": "gemma3n_vision", "architecture": "mobilenetv5_300m_enc", "hidden_size": 2048,
            "model_args": {"channel_multiplier": 0.0625, "msfa_output_resolution": 2},
            "vocab_offset": first_vision, "vocab_size": first_audio - first_vision,
        },
        audio_config={
            "hidden_size": 32, "input_feat_size": 16, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2,
            "conf_attention_chunk_size": 3, "conf_attention_context_left": 4, "sscp_conv_channel_size": [8, 4],
            "conf_reduction_factor": 16,
            "vocab_offset": first_audio, "vocab_size": text["vocab_size"] - first_audio,
        },
        vision_soft_tokens_per_image=4, audio_soft_tokens_per_image=47, image_token_id=tokenizer.image_token_id,
        audio_token_id=tokenizer.audio_token_id, boi_token_id=tokenizer.boi_token_id,
        eoi_token_id=tokenizer.eoi_token_id, boa_token_id=tokenizer.boa_token_id, eoa_token_id=tokenizer.eoa_token_id,
    )  # fmt: skip
    processor = transformers.Gemma3nProcessor(
        feature_extractor=transformers.Gemma3nAudioFeatureExtractor(feature_size=16),
        image_processor=transformers.SiglipImageProcessor(
            size={"height": 64, "width": 64}, do_normalize=False, resample=2
        ),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template, image_seq_length=4,
        audio_seq_length=47,
    )  # fmt: skip
    return transformers.Gemma3nForConditionalGeneration(config), processor


_GLM_IMAGE, _GLM_VIDEO = "<|begin_of_image|><|image|><|end_of_image|>", "<|begin_of_video|><|video|><|end_of_video|>"
_IMAGE: Mapping[str, str] = {"image_token": "<image>"}
_GEMMA4_TOKENS: Mapping[str, str] = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "video_token": "<|video|>",
    "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
}  # fmt: skip
_GEMMA3N_TOKENS: Mapping[str, str] = {
    "boi_token": "<start_of_image>", "boa_token": "<start_of_audio>", "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>", "eoa_token": "<end_of_audio>", "audio_token": "<audio_soft_token>",
}  # fmt: skip
MODULE_CHECKPOINTS: Mapping[str, ModuleCheckpoint] = {
    "aya_vision": ModuleCheckpoint(
        "<image>",
        _aya_vision,
        {
            "image_token": "<image>", "start_of_img_token": "<|START_OF_IMG|>", "end_of_img_token": "<|END_OF_IMG|>",
            "img_patch_token": "<|IMG_PATCH|>", "img_line_break_token": "<|IMG_LINE_BREAK|>",
            "tile_token": "TILE", "tile_global_token": "TILE_GLOBAL",
        },
        has_bos=True,
    ),
    "cohere2_vision": ModuleCheckpoint(
        "<|IMG_PATCH|>",
        _cohere2_vision,
        {
            "image_token": "<|IMG_PATCH|>", "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
    ),
    "vipllava": ModuleCheckpoint("<image>\n", _vipllava, _IMAGE, has_bos=True),
    "llava_next_video": ModuleCheckpoint(
        "<image>\n", _llava_next_video, {"image_token": "<image>", "video_token": "<video>"}, video="<video>\n"
    ),
    "lighton_ocr": ModuleCheckpoint(
        "<|image_pad|>",
        _lighton_ocr,
        {
            "image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>", "image_end_token": "<|vision_end|>",
        },
    ),
    "qianfan_ocr": ModuleCheckpoint(
        "<image>",
        _qianfan_ocr,
        {
            "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
            "marker": "<image>",
        },
    ),
    "gemma3n": ModuleCheckpoint(
        "<image_soft_token>", _gemma3n, _GEMMA3N_TOKENS, audio="<audio_soft_token>", embedding_size=0.125,
        more_merges="Ċ Ċ,ĊĊ Ċ",
    ),
    "gemma4": ModuleCheckpoint("<|image|>", _gemma4, _GEMMA4_TOKENS),
    "gemma4_small": ModuleCheckpoint("<|image|>", _gemma4_small, _GEMMA4_TOKENS),
    "gemma4_audio": ModuleCheckpoint("<|image|>", _gemma4_audio, _GEMMA4_TOKENS, audio="<|audio|>"),
    "gemma4_large": ModuleCheckpoint("<|image|>", _gemma4_large, _GEMMA4_TOKENS),
    "aria": ModuleCheckpoint("<|img|>", _aria, {"image_token": "<|img|>"}),
    "qwen3_vl_moe": ModuleCheckpoint(
        "<|vision_start|><|image_pad|><|vision_end|>", write_qwen3_vl_moe, QWEN_TOKENS,
        video="<|vision_start|><|video_pad|><|vision_end|>",
    ),
    "glm4v_moe": ModuleCheckpoint(_GLM_IMAGE, write_glm4v_moe, GLM_TOKENS, video=_GLM_VIDEO),
    "glm_ocr": ModuleCheckpoint(_GLM_IMAGE, write_glm_ocr, GLM_TOKENS, video=_GLM_VIDEO),
    "paddleocr_vl": ModuleCheckpoint(
        "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", write_paddleocr_vl, PADDLE_TOKENS
    ),
    "qwen2_audio": ModuleCheckpoint(
        "", write_qwen2_audio,
        {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"},
        audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
    ),
    "glmasr": ModuleCheckpoint("", write_glm_asr, {"audio_token": "<|pad|>"}, audio="<|pad|>"),
    "qwen2_5_omni": ModuleCheckpoint(
        OMNI_IMAGE, write_qwen2_5_omni, OMNI_TOKENS, video=OMNI_VIDEO, audio=OMNI_AUDIO
    ),
    "qwen3_omni": ModuleCheckpoint(OMNI_IMAGE, write_qwen3_omni, OMNI_TOKENS, video=OMNI_VIDEO, audio=OMNI_AUDIO),
    "hunyuan_vl": ModuleCheckpoint("<img_start><img><img_end>", write_hunyuan_vl, HUNYUAN_TOKENS),
}  # fmt: skip
