"""Tiny checkpoints of DeepSeek-VL, Ovis2, Mono-InternVL and Mini-Gemini in the layouts of their authors, with the
weights of plain references.

Names, order and fields are those of the published files; the code that is named in them is not run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CODE = "raise RuntimeError('code of a checkpoint was run')\n"
_HALVES = [0.5, 0.5, 0.5]
_SIGLIP: dict[str, Any] = {
    "model_name": "siglip_large_patch16_384", "select_feature": "same", "select_layer": -1, "image_size": 20,
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2, "patch_size": 4,
}  # fmt: skip
_SAM: dict[str, Any] = {
    "model_name": "sam_b_downsample", "ckpt_path": "", "select_feature": "same", "select_layer": -1, "image_size": 36,
    "hidden_size": 32, "mlp_dim": 48, "num_attention_heads": 2, "num_hidden_layers": 3, "output_channels": 8,
    "patch_size": 4, "window_size": 4, "global_attn_indexes": [1],
    "pixel_mean": [0.48, 0.46, 0.41], "pixel_std": [0.27, 0.26, 0.28],
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "torch_dtype": "float32", "use_cache": True,
}  # fmt: skip
_BACKBONE: dict[str, Any] = {
    "attention_dropout": 0.0, "hidden_size": 32, "image_size": 24, "intermediate_size": 48, "model_type": "aimv2",
    "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 4, "projection_dropout": 0.0,
    "qkv_bias": False, "rms_norm_eps": 1e-5, "use_bias": False,
}  # fmt: skip
_PATCHES: dict[str, Any] = {
    "architectures": ["InternVisionPatchModel"], "attention_dropout": 0.0, "drop_path_rate": 0.0, "dropout": 0.0,
    "hidden_act": "gelu", "hidden_size": 32, "image_size": 16, "initializer_factor": 0.1, "initializer_range": 1e-10,
    "intermediate_size": 48, "layer_norm_eps": 1e-6, "model_type": "intern_vit_patch", "norm_type": "layer_norm",
    "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": 4, "qk_normalization": False,
    "qkv_bias": True, "torch_dtype": "float32", "use_flash_attn": True,
}  # fmt: skip
"""Those of layers, of which there are none, are still there."""


def _save(path: Path, model: Any, tokenizer: Any, files: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    model.save(path)
    tokenizer.save_pretrained(path)
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))


def write_deepseek_vl(path: Path, *, is_hybrid: bool) -> None:
    """Write a MultiModalityCausalLM. Its towers are small ones, whose sizes stand beside their names: 5 x 5 patches,
    and for the SAM 9 x 9 in windows of 4, the last of which are padded. The thinnest pictures are 3 pixels."""
    from reference.deepseek_vl import PLACE, DeepseekVL
    from vl.checkpoints import CHATML, make_tokenizer, spread_weights

    tokenizer = make_tokenizer(CHATML.replace("@image@", PLACE), has_bos=True, image_token=PLACE)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids["pad_token_id"] = tokenizer.pad_token_id
    vision: dict[str, Any] = {"cls": "CLIPVisionTower", "model_type": "vision", "params": _SIGLIP}
    if is_hybrid:
        low = {**_SIGLIP, "pixel_mean": _HALVES, "pixel_std": [0.5, 0.4, 0.5]}
        params = {"concat_type": "tuple", "freeze_high": True, "freeze_low": True, "high_res_cfg": _SAM}
        vision = {**vision, "cls": "HybridVisionTower", "params": {**params, "low_res_cfg": low}}
    kind = "low_high_hybrid_split_mlp_gelu" if is_hybrid else "mlp_gelu"
    aligner = {"depth": 2, "input_dim": 32, "n_embed": 64, "projector_type": kind}
    config = {
        "aligner_config": {"cls": "MlpProjector", "model_type": "aligner", "params": aligner},
        "architectures": ["MultiModalityCausalLM"],
        "language_config": {**_TEXT, **ids, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        "model_type": "multi_modality",
        "torch_dtype": "float32",
        "transformers_version": "4.38.2",
        "vision_config": vision,
    }
    processor = {
        "background_color": [127, 127, 127], "image_processor_type": "VLMImageProcessor", "min_size": 3,
        "processor_class": "VLChatProcessor", "rescale_factor": 1 / 255, "image_size": 36 if is_hybrid else 20,
        "do_normalize": not is_hybrid, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27],
    }  # fmt: skip
    chat = {"add_special_token": False, "ignore_id": -100, "image_tag": PLACE, "mask_prompt": True}
    chat |= {"num_image_tokens": 25, "processor_class": "VLChatProcessor", "sft_format": "deepseek"}
    model = DeepseekVL(config)
    spread_weights(model)
    generation = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    files = {"config": config, "preprocessor_config": processor, "processor_config": chat}
    _save(path, model, tokenizer, {**files, "generation_config": generation})


def write_ovis2(path: Path) -> None:
    """Write an Ovis. Its tokenizer has no tokens for pictures, and its template does not write them. Both tokens at
    which Qwen ends answers end them."""
    from reference.ovis2 import Ovis2
    from vl.checkpoints import make_tokenizer, spread_weights

    tokenizer = make_tokenizer("{{ messages[0]['content'] + ' as Qwen has it' }}")
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    llm = {**_TEXT, **ids, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": False}
    visual = {
        "backbone_config": _BACKBONE, "backbone_kwargs": {}, "depths": None, "drop_cls_token": False,
        "hidden_stride": 2, "model_type": "aimv2_visual_tokenizer", "tau": 1.0, "tokenize_function": "softmax",
        "vocab_size": 45,
    }  # fmt: skip
    config = {
        "architectures": ["Ovis"],
        "auto_map": {"AutoConfig": "configuration_ovis.OvisConfig", "AutoModelForCausalLM": "modeling_ovis.Ovis"},
        "conversation_formatter_class": "QwenConversationFormatter",
        "disable_tie_weight": False,
        "hidden_size": 64,
        "llm_attn_implementation": "flash_attention_2",
        "llm_config": llm,
        "model_type": "ovis",
        "multimodal_max_length": 32768,
        "torch_dtype": "float32",
        "transformers_version": "4.46.2",
        "use_cache": False,
        "visual_tokenizer_config": visual,
    }
    clip = {
        "crop_size": {"height": 24, "width": 24}, "do_center_crop": True, "do_convert_rgb": True,
        "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.4, 0.6, 0.2],
        "image_processor_type": "CLIPImageProcessor", "image_std": [0.3, 0.28, 0.27], "resample": 3,
        "rescale_factor": 1 / 255, "size": {"shortest_edge": 24},
    }  # fmt: skip
    model = Ovis2(config)
    spread_weights(model)
    model.vte.weight.data.mul_(4)  # a row is a mean of words: else rows are all alike
    generation = {"eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id]}
    generation["pad_token_id"] = tokenizer.pad_token_id
    _save(path, model, tokenizer, {"config": config, "preprocessor_config": clip, "generation_config": generation})
    for code in ("configuration_aimv2", "configuration_ovis", "modeling_aimv2", "modeling_ovis"):
        (path / f"{code}.py").write_text(CODE)


def write_mono_internvl(path: Path) -> None:
    """Write a Mono-InternVL: an InternVLChatModel by its config.json. Tokenizer and template both write `<s>`. The
    published conversation has a long text before the first question, so that of the folder is asked instead."""
    from published_originals import INTERN_PROCESSOR
    from reference.mono_internvl import END, MARKER, START, MonoInternVL
    from vl.checkpoints import BOS_CHATML, make_tokenizer, spread_weights

    names = {"start_image_token": START, "end_image_token": END, "context_image_token": MARKER}
    tokenizer = make_tokenizer(BOS_CHATML.replace("@image@", f"{MARKER}\n"), has_bos=True, **names)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    code = {"AutoModelForCausalLM": "modeling_internlm2_ve.InternLM2VEForCausalLM"}
    llm = {
        **_TEXT, **ids, "architectures": ["InternLM2VEForCausalLM"], "model_type": "internlm2", "bias": False,
        "attn_implementation": "eager", "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config", **code},
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_scaling": {"factor": 2.0, "type": "dynamic"},
        "rope_theta": 1000000, "tie_word_embeddings": False, "transformers_version": "4.37.2",
    }  # fmt: skip
    config = {
        "architectures": ["InternVLChatModel"],
        "auto_map": {
            "AutoConfig": "configuration_internvl_chat.InternVLChatConfig",
            "AutoModel": "modeling_internvl_chat.InternVLChatModel",
        },
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": 16,
        "llm_config": llm,
        "max_dynamic_patch": 6,
        "min_dynamic_patch": 1,
        "model_type": "internvl_chat",
        "pad2square": False,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "of-this-folder",
        "torch_dtype": "float32",
        "transformers_version": None,
        "use_backbone_lora": 0,
        "use_llm_lora": 0,
        "use_thumbnail": True,
        "vision_config": _PATCHES,
    }
    model = MonoInternVL(config)
    spread_weights(model)
    model.get_parameter("mlp1.0.weight").data.add_(1)
    generation = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    files = {"config": config, "preprocessor_config": INTERN_PROCESSOR, "generation_config": generation}
    _save(path, model, tokenizer, files)
    kinds = ("configuration_intern_vit", "configuration_internvl_chat", "modeling_intern_vit", "modeling_internvl_chat")
    for name in (*kinds, "configuration_internlm2", "modeling_internlm2_ve", "conversation"):
        (path / f"{name}.py").write_text(CODE)


def write_mini_gemini(path: Path, left_out: str = "", **changes: Any) -> None:
    """Write a MGMLlamaForCausalLM, or one of other `architectures`: 3 x 3 rows, each of which looks at 4 x 4 places of
    the second tower. The sizes of the first one stand beside its name; those of the second one are those of its
    tensors. left_out: a field of config.json."""
    from reference.mini_gemini import MARKER, MiniGemini
    from vl.checkpoints import BOS_CHATML, make_tokenizer, spread_weights

    tokenizer = make_tokenizer(BOS_CHATML.replace("@image@", f"{MARKER}\n"), has_bos=True)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    folder = "model_zoo/OpenAI/"
    config = {
        **_TEXT, **ids, "architectures": ["MGMLlamaForCausalLM"], "model_type": "mgm", "attention_bias": False,
        "freeze_mm_mlp_adapter": False, "hidden_act": "silu", "image_aspect_ratio": "pad", "image_global": False,
        "image_grid": 1, "image_grid_pinpoints": None, "image_size_aux": 48, "initializer_range": 0.02,
        "mm_hidden_size": 32, "mm_hidden_size_aux": 56, "mm_projector_lr": None, "mm_projector_type": "mlp2x_gelu",
        "mm_use_im_patch_token": False, "mm_use_im_start_end": False, "mm_vision_select_feature": "patch",
        "mm_vision_select_layer": -2, "mm_vision_tower": f"{folder}clip-vit-large-patch14-336",
        "mm_vision_tower_aux": f"{folder}openclip-convnext-large-d-320-laion2B-s29B-b131K-ft-soup",
        "optimize_vision_tower": False, "optimize_vision_tower_aux": False, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "tokenizer_model_max_length": 2048,
        "tokenizer_padding_side": "right", "transformers_version": "4.38.0", "tune_mm_mlp_adapter": False,
        "unfreeze_mm_vision_tower": False, "use_mm_proj": True,
        "vision_config": {
            "hidden_act": "quick_gelu", "hidden_size": 32, "image_size": 12, "intermediate_size": 48,
            "model_type": "clip_vision_model", "num_attention_heads": 2, "num_hidden_layers": 3, "patch_size": 4,
            "projection_dim": 16,
        },
        **changes,
    }  # fmt: skip
    config.pop(left_out, None)
    model = MiniGemini(config)
    spread_weights(model)
    generation = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    _save(path, model, tokenizer, {"config": config, "generation_config": generation})
