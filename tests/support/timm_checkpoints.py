"""Tiny models whose vision towers are those of timm."""

from __future__ import annotations

from typing import Any

from transformers import (
    CLIPImageProcessor,
    FastVlmConfig,
    FastVlmForConditionalGeneration,
    LlavaProcessor,
    PerceptionLMConfig,
    PerceptionLMForConditionalGeneration,
    PerceptionLMImageProcessor,
    PerceptionLMProcessor,
    PerceptionLMVideoProcessor,
    TimmWrapperConfig,
)

Made = tuple[Any, Any]


def _perception_lm(
    tokenizer: Any, text: Any, statistics: dict[str, Any], template: str, *, architecture: str, **args: Any
) -> Made:
    """Tiles of 5² patches, of which squares of about four are pooled."""
    sizes = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": [20, 20], "patch_size": 4, "init_values": 0.1}
    vision = TimmWrapperConfig(architecture=architecture, model_args={**sizes, "global_pool": "", **args})
    config = PerceptionLMConfig(
        vision_config=vision.to_dict(), text_config=text, projector_pooling_ratio=2,
        image_token_id=tokenizer.image_token_id, video_token_id=tokenizer.video_token_id,
    )  # fmt: skip
    processor = PerceptionLMProcessor(
        image_processor=PerceptionLMImageProcessor(tile_size=20, max_num_tiles=6, **statistics),
        video_processor=PerceptionLMVideoProcessor(size={"height": 20, "width": 20}, **statistics),
        tokenizer=tokenizer, patch_size=4, pooling_ratio=2, chat_template=template,
    )  # fmt: skip
    return PerceptionLMForConditionalGeneration(config), processor


def write_perception_lm(*parts: Any) -> Made:
    """As published: a Perception Encoder without its last norm; rotary positions of a larger grid."""
    args: dict[str, Any] = {"use_post_transformer_norm": False, "ref_feat_shape": [7, 7]}
    return _perception_lm(*parts, architecture="vit_pe_core_large_patch14_336", **args)


def write_timm_perception_lm(*parts: Any) -> Made:
    """A tower that timm's module computes."""
    return _perception_lm(*parts, architecture="vit_base_patch16_224")


def write_fast_vlm(tokenizer: Any, text: Any, statistics: dict[str, Any], template: str) -> Made:
    """A tower of five stages, which halves a picture's sides six times."""
    args = {"inference_mode": True, "layers": [1, 1, 1, 1, 1], "embed_dims": [8, 16, 16, 32, 32]}
    vision = TimmWrapperConfig(architecture="fastvit_mci3", model_args=args, hidden_size=64, global_pool="avg")
    config = FastVlmConfig(
        vision_config=vision.to_dict(), text_config=text, image_token_index=tokenizer.image_token_id,
        image_seq_length=4,
    )  # fmt: skip
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(
            size={"shortest_edge": 128}, crop_size={"height": 128, "width": 128}, **statistics
        ),
        tokenizer=tokenizer, patch_size=64, vision_feature_select_strategy="full", chat_template=template,
    )  # fmt: skip
    return FastVlmForConditionalGeneration(config), processor


def publish_vision(tiny: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The vision_config that Transformers 4 wrote, with what it copied from timm's files."""
    own = tiny["vision_config"]
    return {
        "architecture": own["architecture"], "do_pooling": True, "initializer_range": 0.02,
        "model_type": "timm_wrapper",
        "label_names": ["LABEL_0", "LABEL_1"], "model_args": own["model_args"], "num_classes": 2,
        "num_features": own["model_args"].get("embed_dim", 64), "torch_dtype": "float32",
        "pretrained_cfg": {
            "custom_load": False, "input_size": [3, 336, 336], "fixed_input_size": True, "interpolation": "bicubic",
            "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "tag": "fb", "url": "https://nowhere.invalid/weights.pt",
            "first_conv": "patch_embed.proj", "classifier": "head", "license": "apache-2.0",
        },
        **changes,
    }  # fmt: skip
