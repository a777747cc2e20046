"""Published models with pictures: what their config.json and the files of their processors say."""

from __future__ import annotations

from published import IDS, Json, Published

from seesay.vl.registry import list_families

_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
}
_HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3}
_QWEN_IDS = {
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
}
_CLIP_336 = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "image_size": 336, "patch_size": 14, "projection_dim": 768,
}  # fmt: skip
_SIGLIP_384 = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
    "num_attention_heads": 16, "image_size": 384, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
_SO400M = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "patch_size": 14,
}  # fmt: skip
_PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
_IMG_TOKENS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
_NEXT_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_ONEVISION_RESOLUTIONS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]


def _qwen(architecture: str, model_type: str, decoder: str, vision: Json, processor: Json) -> Published:
    config = {"architectures": [architecture], "model_type": model_type, "vision_config": vision, **_QWEN_IDS}
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "temporal_patch_size": 2, "merge_size": 2, **processor}
    return Published(config=config, decoder=decoder, image_processor=settings)


_QWEN_SIZE = {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 12845056}, **_CLIP}

MODELS: dict[str, Published] = {
    "qwen2_5_vl": _qwen(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        "qwen2_5_vl",
        {
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
            "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
        },
        _QWEN_SIZE,
    ),
    "qwen2_vl": _qwen(
        "Qwen2VLForConditionalGeneration",
        "qwen2_vl",
        "qwen2_vl",
        {
            "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14,
            "temporal_patch_size": 2, "spatial_merge_size": 2,
        },
        _QWEN_SIZE,
    ),
    "qwen3_vl": _qwen(
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        "qwen3_vl",
        {
            "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 4096,
            "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, **_HALVES},
    ),
    "llava": Published(
        config={
            "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "vision_config": _CLIP_336,
            "image_token_index": IDS["<image>"], "image_seq_length": 576, "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
        },
        decoder="llama",
        image_processor={
            "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 336},
            "crop_size": {"height": 336, "width": 336}, **_CLIP,
        },
    ),
    "llava_next": Published(
        config={
            "architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next",
            "vision_config": _CLIP_336, "image_token_index": IDS["<image>"], "image_seq_length": 576,
            "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
            "image_grid_pinpoints": _NEXT_RESOLUTIONS,
        },
        decoder="mistral",
        image_processor={
            "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 336},
            "crop_size": {"height": 336, "width": 336}, "image_grid_pinpoints": _NEXT_RESOLUTIONS, **_CLIP,
        },
    ),
    "llava_onevision": Published(
        config={
            "architectures": ["LlavaOnevisionForConditionalGeneration"], "model_type": "llava_onevision",
            "vision_config": _SIGLIP_384, "image_token_index": IDS["<image>"], "video_token_index": IDS["<video>"],
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_9", "image_grid_pinpoints": _ONEVISION_RESOLUTIONS,
        },
        decoder="qwen2",
        image_processor={
            "image_processor_type": "LlavaOnevisionImageProcessor", "size": {"height": 384, "width": 384},
            "image_grid_pinpoints": _ONEVISION_RESOLUTIONS, **_HALVES,
        },
    ),
    "internvl": Published(
        config={
            "architectures": ["InternVLForConditionalGeneration"], "model_type": "internvl",
            "vision_config": {
                "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                "attention_bias": True, "image_size": [448, 448], "patch_size": [14, 14],
            },
            "image_token_id": IDS["<IMG_CONTEXT>"], "image_seq_length": 256, "downsample_ratio": 0.5,
        },
        decoder="qwen2",
        image_processor={
            "image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 448, "width": 448},
            "crop_to_patches": True, "min_patches": 1, "max_patches": 12, **_IMAGENET,
        },
    ),
    "pixtral": Published(
        config={
            "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
            "vision_config": {**_PIXTRAL, "image_size": 1024, "patch_size": 16, "hidden_act": "silu"},
            "image_token_index": IDS["[IMG]"], "image_seq_length": 1, "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full", "projector_hidden_act": "gelu",
        },
        decoder="mistral_12b",
        image_processor={
            "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 1024},
            "patch_size": {"height": 16, "width": 16}, **_CLIP,
        },
        processor={**_IMG_TOKENS, "patch_size": 16},
    ),
    "mistral3": Published(
        config={
            "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
            "vision_config": {**_PIXTRAL, "image_size": 1540, "patch_size": 14, "hidden_act": "silu"},
            "image_token_index": IDS["[IMG]"], "vision_feature_layer": -1, "spatial_merge_size": 2,
            "projector_hidden_act": "gelu", "multimodal_projector_bias": False,
        },
        decoder="mistral_24b",
        image_processor={
            "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 1540},
            "patch_size": {"height": 14, "width": 14}, **_CLIP,
        },
        processor={**_IMG_TOKENS, "patch_size": 14, "spatial_merge_size": 2},
        options={"patch_size": {"height": 28, "width": 28}},
    ),
    "gemma3": Published(
        config={
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 256,
            "vision_config": {
                **_SO400M, "model_type": "siglip_vision_model", "image_size": 896, "vision_use_head": False,
            },
            "boi_token_index": IDS["<start_of_image>"], "eoi_token_index": IDS["<end_of_image>"],
            "image_token_index": IDS["<image_soft_token>"],
        },
        decoder="gemma3",
        image_processor={
            "image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896},
            **_HALVES, "resample": 2,
        },
    ),
    "idefics3": Published(
        config={
            "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "scale_factor": 2,
            "vision_config": {**_SO400M, "model_type": "idefics3_vision", "image_size": 364},
            "image_token_id": IDS["<image>"],
        },
        decoder="llama3",
        image_processor={
            "image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 1456},
            "max_image_size": {"longest_edge": 364}, "do_image_splitting": True, **_HALVES, "resample": 1,
        },
    ),
    "smolvlm": Published(
        config={
            "architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm", "scale_factor": 3,
            "vision_config": {**_SO400M, "model_type": "smolvlm_vision", "image_size": 384},
            "image_token_id": IDS["<image>"],
        },
        decoder="smollm2",
        image_processor={
            "image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 1536},
            "max_image_size": {"longest_edge": 384}, "do_image_splitting": True, **_HALVES, "resample": 1,
        },
    ),
    "minicpmv": Published(
        config={
            "architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": 2.6, "query_num": 64,
            "vision_config": {**_SO400M, "model_type": "siglip", "image_size": 980}, "drop_vision_last_layer": False,
        },
        decoder="qwen2",
        text_key=None,
        image_processor={
            "image_processor_type": "MiniCPMVImageProcessor", "max_slice_nums": 9, "scale_resolution": 448,
            "patch_size": 14, "use_image_id": True, "image_feature_size": 64, "slice_mode": True, **_HALVES,
        },
        reference="minicpmv:MiniCPMV:Slicer",
    ),
    "phi3_v": Published(
        config={
            "architectures": ["Phi3VForCausalLM"], "model_type": "phi3_v", "vision_config": _CLIP_336,
            "embd_layer": {
                "embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp",
                "use_hd_transform": True, "with_learnable_separator": True,
            },
            "img_processor": {
                "image_dim_out": 1024, "model_name": "openai/clip-vit-large-patch14-336", "num_img_tokens": 144,
            },
        },
        decoder="phi3",
        text_key=None,
        image_processor={
            "image_processor_type": "Phi3VImageProcessor", "num_crops": 16, "num_img_tokens": 144, **_CLIP,
            "resample": 2,
        },
        reference="phi3_v:Phi3V:Tiler",
        options={"tile": 336},
    ),
}  # fmt: skip
MODELS["internvl_chat"] = Published(
    config={
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "template": "internvl2_5",
        "vision_config": {
            "model_type": "intern_vit_6b", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
            "num_attention_heads": 16, "qkv_bias": True, "qk_normalization": False, "norm_type": "layer_norm",
            "image_size": 448, "patch_size": 14,
        },
        "downsample_ratio": 0.5, "ps_version": "v2", "select_layer": -1, "force_image_size": 448,
        "dynamic_image_size": True, "min_dynamic_patch": 1, "max_dynamic_patch": 12, "use_thumbnail": True,
    },
    decoder="qwen2",
    text_key="llm_config",
    image_processor={},
    in_transformers=MODELS["internvl"],
)  # fmt: skip
"""By the names of their families."""


def list_others() -> list[str]:
    """Return the architectures with pictures of which no model is here."""
    here = set()
    for model in MODELS.values():
        name, tower = model.architecture, model.config["vision_config"].get("model_type")
        here.add(f"{name}/{tower}" if f"{name}/{tower}" in list_families() else name)
    return [name for name, family in list_families().items() if family.modalities and name not in here]
