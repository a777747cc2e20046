"""Tiny checkpoints of DeepSeek-OCR, as its authors publish it, and of DeepSeek-OCR 2 in Transformers' layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 2,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "max_position_embeddings": 2048,
    "vocab_size": 288, "rms_norm_eps": 1e-6,
}  # fmt: skip
_STATISTICS = {"image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27], "resample": 3}


def _list_ids(tokenizer: Any) -> dict[str, Any]:
    ids = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id")}
    return {**ids, "bos_token_id": tokenizer.bos_token_id}


def write_deepseek_ocr(path: Path) -> None:
    """Write a checkpoint with whole pictures of 32 pixels, 4 x 4 rows, and tiles of 20 pixels, 3 x 3 rows of 10 x 10
    patches. Both are larger than the SAM's windows, and the tiles smaller than the tables of positions."""
    from reference.deepseek_ocr import DeepseekOCR
    from vl.checkpoints import DEEPSEEK_TEMPLATE, EXPERTS, make_tokenizer, save_reference

    parts: dict[str, Any] = {"image_token": "<image>", "user_token": "<|User|>", "assistant_token": "<|Assistant|>"}
    tokenizer = make_tokenizer(DEEPSEEK_TEMPLATE, **parts)
    tokenizer.bos_token = "<|endoftext|>"
    text = {
        **_TEXT, **_list_ids(tokenizer), "first_k_dense_replace": 1, "kv_lora_rank": None, "q_lora_rank": None,
        "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0, "use_mla": False, "lm_head": True,
        "rm_head": False,
    }  # fmt: skip
    config = {
        **text, "architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseek_vl_v2", "tile_tag": "2D",
        "candidate_resolutions": [[32, 32]], "global_view_pos": "head", "torch_dtype": "float32",
        "language_config": {**text, "architectures": ["DeepseekV2ForCausalLM"], "torch_dtype": "float32"},
        "projector_config": {
            "input_dim": 32, "model_type": "mlp_projector", "n_embed": 64, "projector_type": "linear",
        },
        "vision_config": {
            "image_size": 32, "mlp_ratio": 3.7362, "model_name": "deeplip_b_l", "model_type": "vision",
            "width": {
                "clip-l-14-224": {"heads": 2, "image_size": 16, "layers": 2, "patch_size": 4, "width": 16},
                "sam_vit_b": {
                    "downsample_channels": [12, 16], "global_attn_indexes": [1], "heads": 2, "layers": 2, "width": 16,
                    "patch_size": 2, "window_size": 3, "output_channels": 8,
                },
            },
        },
    }  # fmt: skip
    settings = {
        **_STATISTICS, "normalize": True, "image_token": "<image>", "patch_size": 2, "downsample_ratio": 4,
        "candidate_resolutions": [[32, 32]], "sft_format": "deepseek", "tile_size": 20, "max_patches": 4,
    }  # fmt: skip
    save_reference(path, DeepseekOCR(config), config, settings, tokenizer, "deepseekocr", factors=EXPERTS)


def write_deepseek_ocr2(path: Path) -> None:
    """Write a checkpoint with patches of one pixel, for the tables of queries are as large as published: whole pictures
    of 64 pixels have 16 x 16 rows, tiles of 48 have 12 x 12."""
    import transformers
    from vl.checkpoints import CHATML, make_tokenizer, save_model

    tokenizer = make_tokenizer(CHATML.replace("@image@", "<image>\n"), image_token="<image>")
    config = transformers.DeepseekOcr2Config(
        text_config={**_TEXT, **_list_ids(tokenizer), "mlp_layer_types": ["dense", "sparse"]},
        vision_config={
            "sam_config": {
                "hidden_size": 16, "mlp_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "image_size": 64,
                "patch_size": 1, "window_size": 14, "global_attn_indexes": [1], "output_channels": 8,
                "downsample_channels": [12, 32],
            },
            "encoder_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2,
            },
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = transformers.DeepseekOcr2ForConditionalGeneration(config)
    save_model(model, path)
    transformers.DeepseekOcr2Processor(
        image_processor=transformers.DeepseekOcr2ImageProcessor(
            size={"height": 64, "width": 64}, tile_size=48, **_STATISTICS
        ),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template, patch_size=1, downsample_ratio=4,
    ).save_pretrained(path)  # fmt: skip
