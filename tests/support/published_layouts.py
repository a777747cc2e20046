"""Folders as they lie on the hub, made of tiny checkpoints: the same weights under the published names, the published
config.json with small sizes, and the files that people find beside them.

Each layout is named after the release whose files it follows. What a later release of Transformers would write instead
is not in them: no `rope_parameters`, no `layer_types`, no `dtype`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from original_layouts import CODE, publish_internvl_chat, publish_original_llava
from published_originals import INTERN_PROCESSOR
from published_text import QWEN_FILES, TEXT_LAYOUTS, Json, Layout, publish_first_qwen, text_settings, write_tiktoken
from safetensors.torch import load_file, save_file
from timm_checkpoints import publish_vision

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
PINPOINTS = [[12, 24], [24, 12], [24, 24], [36, 12], [12, 36]]


def _qwen_vl(tiny: Json, vision: Json, version: str) -> Json:
    text = tiny["text_config"]
    return {
        **text_settings(text, use_sliding_window=False, sliding_window=32768, max_window_layers=28),
        **{name: tiny[name] for name in ("architectures", "model_type", "tie_word_embeddings")},
        **{name: value for name, value in tiny.items() if name.endswith("token_id")},
        "vision_token_id": tiny["vision_end_token_id"] + 1,
        "bos_token_id": text["pad_token_id"],
        "eos_token_id": text["eos_token_id"],
        "rope_scaling": {"type": "mrope", "mrope_section": text["rope_parameters"]["mrope_section"]},
        "transformers_version": version,
        "vision_config": vision,
    }


def _qwen2_vl(tiny: Json) -> Json:
    own = tiny["vision_config"]
    kept = ("depth", "embed_dim", "mlp_ratio", "num_heads", "hidden_size", "patch_size", "spatial_merge_size")
    vision = {**{name: own[name] for name in kept}, "in_chans": 3, "temporal_patch_size": 2}
    return _qwen_vl(tiny, {**vision, "spatial_patch_size": own["patch_size"]}, "4.41.2")


def _qwen2_5_vl(tiny: Json) -> Json:
    unpublished = ("model_type", "rope_parameters", "in_channels", "initializer_range")
    own = {name: value for name, value in tiny["vision_config"].items() if name not in unpublished}
    return _qwen_vl(tiny, {**own, "in_chans": 3, "spatial_patch_size": own["patch_size"]}, "4.41.2")


def _glm4v(tiny: Json) -> Json:
    text, rope = tiny["text_config"], tiny["text_config"]["rope_parameters"]
    unpublished = ("model_type", "rope_parameters", "initializer_range")
    return {
        **{name: tiny[name] for name in ("architectures", "model_type")},
        **{name: value for name, value in tiny.items() if name.endswith("token_id")},
        "text_config": text_settings(
            text, attention_bias=True, model_type="glm4v_text", eos_token_id=[text["eos_token_id"]],
            pad_token_id=text["pad_token_id"], partial_rotary_factor=rope["partial_rotary_factor"],
            rope_scaling={"rope_type": "default", "mrope_section": rope["mrope_section"]},
        ),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.57.1",
        "vision_config": {
            **{name: value for name, value in tiny["vision_config"].items() if name not in unpublished},
            "hidden_dropout_prob": 0.0,
        },
    }  # fmt: skip


def _llava(tiny: Json) -> Json:
    own, text = tiny["vision_config"], tiny["text_config"]
    kept = ("hidden_size", "image_size", "intermediate_size", "model_type", "num_attention_heads", "num_hidden_layers")
    vision = {**{name: own[name] for name in (*kept, "patch_size")}, "projection_dim": 768, "vocab_size": 32000}
    return {
        "architectures": tiny["architectures"],
        "ignore_index": -100,
        "image_token_index": tiny["image_token_index"],
        "model_type": "llava",
        "pad_token_id": text["pad_token_id"],
        "projector_hidden_act": "gelu",
        "text_config": text_settings(
            text,
            _name_or_path="lmsys/vicuna-7b-v1.5",
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            eos_token_id=text["eos_token_id"],
            bos_token_id=text["bos_token_id"],
        ),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.36.0.dev0",
        "vision_config": vision,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "vocab_size": text["vocab_size"],
    }


def _siglip_llava(tiny: Json) -> Json:
    """LLaVA-OneVision and LLaVA-Interleave."""
    own, text = tiny["vision_config"], tiny["text_config"]
    kept = ("hidden_size", "image_size", "intermediate_size", "model_type", "num_attention_heads", "num_hidden_layers")
    more = ("image_grid_pinpoints", "video_token_index", "vision_aspect_ratio")
    return {
        **_llava(tiny),
        **{name: tiny[name] for name in more if name in tiny},
        "model_type": tiny["model_type"],
        "text_config": text_settings(
            text,
            _name_or_path="Qwen/Qwen2-7B-Instruct",
            architectures=["Qwen2ForCausalLM"],
            model_type="qwen2",
            eos_token_id=text["eos_token_id"],
            bos_token_id=text["pad_token_id"],
            max_window_layers=28,
            sliding_window=131072,
            use_sliding_window=False,
        ),
        "transformers_version": "4.45.0.dev0",
        "vision_config": {**{name: own[name] for name in (*kept, "patch_size")}, "vision_use_head": False},
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }


def _pixtral(tiny: Json) -> Json:
    text = tiny["text_config"]
    head = text["head_dim"]
    return {
        **{name: tiny[name] for name in ("architectures", "image_seq_length", "image_token_index", "model_type")},
        "ignore_index": -100,
        "projector_hidden_act": "gelu",
        "text_config": text_settings(
            text, head_dim=head, is_composition=True, model_type="mistral", sliding_window=None
        ),
        "torch_dtype": "float32",
        "transformers_version": "4.50.0.dev0",
        "vision_config": _pixtral_tower(tiny, is_composition=True, tie_word_embeddings=False),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }


def _pixtral_tower(tiny: Json, **published: Any) -> Json:
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "patch_size", "image_size")
    own = {name: tiny["vision_config"][name] for name in (*kept, "head_dim", "hidden_act")}
    return {**own, "model_type": "pixtral", "rope_theta": 10000.0, **published}


def _mistral3(tiny: Json) -> Json:
    text = tiny["text_config"]
    kept = ("architectures", "image_token_index", "model_type", "spatial_merge_size", "vision_feature_layer")
    return {
        **{name: tiny[name] for name in kept},
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "text_config": text_settings(text, head_dim=text["head_dim"], model_type="mistral", sliding_window=None),
        "torch_dtype": "float32",
        "transformers_version": "4.50.0.dev0",
        "vision_config": _pixtral_tower(tiny, attention_dropout=0.0, initializer_range=0.02, num_channels=3),
    }


def _internvl(tiny: Json) -> Json:
    text = tiny["text_config"]
    own = {**tiny["vision_config"], "architectures": ["InternVLVisionModel"], "torch_dtype": "float32"}
    kept = ("architectures", "downsample_ratio", "image_seq_length", "image_token_id", "model_type")
    more = ("projector_hidden_act", "vision_feature_layer", "vision_feature_select_strategy")
    qwen = text_settings(text, architectures=["Qwen2ForCausalLM"], model_type="qwen2", rope_scaling=None)
    return {
        **{name: tiny[name] for name in (*kept, *more)},
        "text_config": {
            **qwen,
            "bos_token_id": text["bos_token_id"],
            "eos_token_id": text["eos_token_id"],
            "max_window_layers": 70,
            "sliding_window": None,
            "use_sliding_window": False,
        },
        "torch_dtype": "float32",
        "transformers_version": "4.52.0.dev0",
        "vision_config": own,
    }


def _idefics3(tiny: Json) -> Json:
    """Idefics3, SmolVLM and SmolVLM2."""
    own, text = tiny["vision_config"], tiny["text_config"]
    kept = ("hidden_size", "image_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "patch_size")
    vision = {
        **{name: own[name] for name in (*kept, "model_type")},
        "max_image_size": {"longest_edge": own["image_size"]},
        "size": {"longest_edge": 4 * own["image_size"]},
        "tie_word_embeddings": False,
        "use_base_siglip": False,
    }
    decoder = text_settings(
        text,
        _flash_attn_2_enabled=True,
        _name_or_path="None",
        architectures=["VLlama3ForCausalLM"],
        eos_token_id=text["eos_token_id"],
        head_dim=text["head_dim"],
        is_llama_config=True,
        mlp_bias=False,
        model_type="llama",
        neftune_noise_alpha=0.0,
        pad_token_id=text["pad_token_id"],
        perceiver_config={"model_type": "vllama3", "resampler_depth": 6, "transformers.js_config": {"dtype": "q4"}},
        pixel_shuffle_factor=tiny["scale_factor"],
        qk_layer_norms=False,
        rope_interleaved=False,
        rope_scaling=None,
        use_resampler=False,
    )
    more = ("architectures", "image_token_id", "model_type", "scale_factor", "tie_word_embeddings")
    return {
        **{name: tiny[name] for name in more},
        "text_config": decoder,
        "torch_dtype": "float32",
        "transformers_version": "4.47.1",
        "use_cache": False,
        "vision_config": vision,
        "vocab_size": text["vocab_size"],
    }


def _gemma3_vision(tiny: Json) -> Json:
    text, own = tiny["text_config"], tiny["vision_config"]
    kept = ("hidden_size", "image_size", "intermediate_size", "model_type", "num_attention_heads", "num_hidden_layers")
    published = {
        "hidden_size", "intermediate_size", "model_type", "num_attention_heads", "num_hidden_layers",
        "num_key_value_heads", "head_dim", "sliding_window", "vocab_size", "query_pre_attn_scalar",
    }  # fmt: skip
    return {
        **{name: tiny[name] for name in ("architectures", "model_type", "mm_tokens_per_image")},
        **{name: value for name, value in tiny.items() if name.endswith("token_index")},
        "eos_token_id": [text["eos_token_id"], text["pad_token_id"]],
        "initializer_range": 0.02,
        "text_config": {
            **{name: text[name] for name in published},
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window_pattern": 2,
        },
        "torch_dtype": "float32",
        "transformers_version": "4.50.0.dev0",
        "vision_config": {**{name: own[name] for name in (*kept, "patch_size")}, "vision_use_head": False},
    }


def _paligemma(tiny: Json) -> Json:
    """The sizes that the configuration class has by itself are left out, and those of all layers are said twice."""
    text, own = tiny["text_config"], tiny["vision_config"]
    kept = {
        "attn_logit_softcapping", "final_logit_softcapping", "head_dim", "hidden_act", "hidden_activation",
        "hidden_size", "intermediate_size", "model_type", "num_attention_heads", "num_hidden_layers",
        "num_image_tokens", "num_key_value_heads", "query_pre_attn_scalar", "sliding_window", "vocab_size",
    }  # fmt: skip
    sizes = ("hidden_size", "image_size", "intermediate_size", "model_type", "num_attention_heads", "num_hidden_layers")
    return {
        **{name: tiny[name] for name in ("architectures", "image_token_index", "model_type", "projection_dim")},
        **{name: text[name] for name in ("bos_token_id", "eos_token_id", "hidden_size", "pad_token_id")},
        "_vocab_size": text["vocab_size"],
        "num_hidden_layers": text["num_hidden_layers"],
        "text_config": {name: text[name] for name in kept & text.keys()},
        "torch_dtype": "float32",
        "transformers_version": "4.47.0.dev0",
        "vision_config": {
            **{name: own[name] for name in (*sizes, "patch_size", "projection_dim")},
            "num_image_tokens": text["num_image_tokens"],
            "num_positions": text["num_image_tokens"],
            "vision_use_head": False,
        },
    }


def _llava_next(tiny: Json) -> Json:
    base = _llava(tiny)
    text = {**base["text_config"], "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    return {
        **base,
        "image_grid_pinpoints": tiny["image_grid_pinpoints"],
        "model_type": "llava_next",
        "text_config": {**text, "_name_or_path": "mistralai/Mistral-7B-Instruct-v0.2", "sliding_window": None},
        "transformers_version": "4.39.0.dev0",
        "use_image_newline_parameter": True,
    }


def _minicpmv(**published: Any) -> Callable[[Json], Json]:
    def make(tiny: Json) -> Json:
        code = "modeling_minicpmv.MiniCPMV"
        own = {name: value for name, value in tiny.items() if value is not None}
        return {
            **own,
            "_name_or_path": "openbmb/MiniCPM-V-2_6",
            "attention_dropout": 0.0,
            "auto_map": {
                "AutoConfig": "configuration_minicpm.MiniCPMVConfig", "AutoModel": code, "AutoModelForCausalLM": code,
            },
            "batch_vision_input": True,
            "image_size": 448,
            "initializer_range": 0.02,
            "patch_size": tiny["vision_config"]["patch_size"],
            "slice_config": {"max_slice_nums": 6, "model_type": "minicpmv", "scale_resolution": 16},
            "slice_mode": True,
            "transformers_version": "4.40.0",
            "use_cache": True,
            "vision_batch_size": 16,
            **published,
        }  # fmt: skip

    return make


def _minicpmv_2_5(tiny: Json) -> Json:
    made = _minicpmv(pretraining_tp=1, rope_scaling=None, use_image_id=False)(tiny)
    return {name: value for name, value in made.items() if name != "version"}


def _phi3_v(tiny: Json) -> Json:
    kept = ("architectures", "embd_layer", "img_processor", "model_type", "original_max_position_embeddings")
    more = ("rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "vision_config")
    return {
        **text_settings({**tiny, "rope_parameters": {"rope_theta": tiny["rope_theta"]}}),
        **{name: tiny[name] for name in (*kept, *more, "bos_token_id", "eos_token_id")},
        "_name_or_path": "Phi-3-vision-128k-instruct",
        "auto_map": {
            "AutoConfig": "configuration_phi3_v.Phi3VConfig",
            "AutoModelForCausalLM": "modeling_phi3_v.Phi3VForCausalLM",
        },
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "transformers_version": "4.38.1",
    }


def _cogvlm(tiny: Json) -> Json:
    """Without a model_type, and without a file for the processor, whose settings are in the code."""
    code = {"AutoConfig": "configuration_cogvlm.CogVLMConfig", "AutoModelForCausalLM": tiny["auto_map"].popitem()[1]}
    return {**tiny, "auto_map": code, "transformers_version": "4.40.2"}


_COGVLM_FILES: Json = {
    **dict.fromkeys(("configuration_cogvlm.py", "modeling_cogvlm.py", "util.py", "visual.py"), CODE),
    "processor_config.json": None,
}


def _molmo(tiny: Json) -> Json:
    """With `vision_config`, whose values are constants in the published code."""
    own = {name: value for name, value in tiny.items() if name != "eos_token_id"}
    return {
        **own,
        "auto_map": {
            "AutoConfig": "config_molmo.MolmoConfig",
            "AutoModelForCausalLM": "modeling_molmo.MolmoForCausalLM",
        },
        "transformers_version": "4.43.3",
    }


def _xcomposer2(tiny: Json) -> Json:
    """With `vision_config`, whose values are constants in the published code."""
    return {
        **tiny,
        "_name_or_path": "internlm/internlm-xcomposer2-vl-7b",
        "auto_map": {
            "AutoConfig": "configuration_internlm_xcomposer2.InternLMXcomposer2Config",
            "AutoModelForCausalLM": "modeling_internlm_xcomposer2.InternLMXComposer2ForCausalLM",
        },
        "initializer_range": 0.02,
        "internlm_lora": None,
        "transformers_version": "4.33.1",
        "use_cache": False,
    }


def _kimi_vl(tiny: Json) -> Json:
    code = {
        "AutoConfig": "configuration_kimi_vl.KimiVLConfig",
        "AutoModel": "modeling_kimi_vl.KimiVLForConditionalGeneration",
    }
    return {**tiny, "auto_map": code, "transformers_version": "4.50.3"}


def _deepseek_vl2(tiny: Json) -> Json:
    """Without architectures."""
    language = {
        **tiny["language_config"],
        "architectures": ["DeepseekV2ForCausalLM"],
        "lm_head": True,
        "rm_head": False,
    }
    left_out = ("architectures", "auto_map", "candidate_resolutions")
    return {
        **{name: value for name, value in tiny.items() if name not in left_out},
        "candidate_resolutions": [[22, 22], [22, 44]],
        "language_config": language,
        "transformers_version": "4.38.2",
    }


def _perception_lm(tiny: Json) -> Json:
    """Of 2025-07, which Transformers 4.54 converted."""
    text = tiny["text_config"]
    kept = ("architectures", "image_token_id", "video_token_id", "model_type", "projector_pooling_ratio")
    return {
        **{name: tiny[name] for name in kept},
        "vision_use_cls_token": True,
        "torch_dtype": "float32",
        "text_config": {
            **text_settings(text, use_sliding_window=False, max_window_layers=28),
            **{name: text[name] for name in ("model_type", "eos_token_id", "tie_word_embeddings")},
        },
        "vision_config": publish_vision(tiny, global_pool="map"),
        "transformers_version": "4.54.0.dev0",
    }


def _fast_vlm(tiny: Json) -> Json:
    text = tiny["text_config"]
    kept = ("architectures", "image_token_index", "model_type", "image_seq_length")
    return {
        **{name: tiny[name] for name in kept},
        "image_token_id": tiny["image_token_index"],
        "multimodal_projector_bias": True,
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "tie_word_embeddings": tiny["tie_word_embeddings"],
        "text_config": {
            **text_settings(text, use_sliding_window=False, sliding_window=None, max_window_layers=24),
            **{name: text[name] for name in ("model_type", "eos_token_id", "tie_word_embeddings")},
        },
        "vision_config": publish_vision(tiny, global_pool="avg", hidden_size=tiny["vision_config"]["hidden_size"]),
        "transformers_version": "4.57.0.dev0",
    }


def _deepseek_vl(tiny: Json) -> Json:
    """Of 2025-07, converted for Transformers 4.54."""
    own, text = tiny["vision_config"], tiny["text_config"]
    return {
        **{name: tiny[name] for name in ("architectures", "image_token_id", "model_type")},
        "text_config": text_settings(
            text, attention_bias=False, head_dim=text["head_dim"], mlp_bias=False, model_type="llama", pretraining_tp=1,
            rope_scaling=None,
        ),
        "torch_dtype": "float32",
        "transformers_version": "4.54.0.dev0",
        "vision_config": {**own, "torch_dtype": "float32"},
        **({"high_res_vision_config": tiny["high_res_vision_config"]} if "high_res_vision_config" in tiny else {}),
    }  # fmt: skip


def _ovis2(tiny: Json) -> Json:
    """Of 2025-08, converted for Transformers 4.56."""
    text = tiny["text_config"]
    kept = ("architectures", "hidden_size", "image_token_id", "model_type", "visual_indicator_token_ids", "vocab_size")
    return {
        **{name: tiny[name] for name in kept},
        "tie_word_embeddings": False,
        "text_config": {
            **text_settings(text, use_sliding_window=False, sliding_window=None, max_window_layers=21),
            **{name: text[name] for name in ("model_type", "eos_token_id", "tie_word_embeddings")},
        },
        "torch_dtype": "float32",
        "transformers_version": "4.56.0.dev0",
        "vision_config": {
            **tiny["vision_config"], "backbone_kwargs": {}, "depths": None, "drop_cls_token": False, "tau": 1.0,
            "use_indicators": False,
        },
    }  # fmt: skip


_QWEN_PROCESSOR = {
    "min_pixels": 256, "max_pixels": 6400, "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": CLIP_MEAN, "image_std": CLIP_STD,
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
}  # fmt: skip
_GLM_PROCESSOR = {
    "size": {"shortest_edge": 512, "longest_edge": 12800}, "do_rescale": True, "patch_size": 4,
    "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27],
    "image_processor_type": "Glm4vImageProcessor", "processor_class": "Glm4vProcessor",
}  # fmt: skip
_GLM_VIDEOS = {
    **{name: value for name, value in _GLM_PROCESSOR.items() if name != "image_processor_type"},
    "size": {"shortest_edge": 256, "longest_edge": 9216}, "video_processor_type": "Glm4vVideoProcessor",
}  # fmt: skip
_CLIP_PROCESSOR = {
    "crop_size": {"height": 20, "width": 20}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True,
    "do_rescale": True, "do_resize": True, "image_mean": CLIP_MEAN, "image_std": CLIP_STD,
    "image_processor_type": "CLIPImageProcessor", "processor_class": "LlavaProcessor", "resample": 3,
    "rescale_factor": 1 / 255, "size": {"shortest_edge": 20},
}  # fmt: skip
_INTERN_PROCESSOR = {
    "crop_size": None, "crop_to_patches": False, "data_format": "channels_first", "default_to_square": True,
    "do_center_crop": None, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
    "image_mean": CLIP_MEAN, "image_processor_type": "GotOcr2ImageProcessorFast", "image_std": CLIP_STD,
    "max_patches": 6, "min_patches": 1, "processor_class": "InternVLProcessor", "resample": 3,
    "rescale_factor": 1 / 255, "return_tensors": None, "size": {"height": 16, "width": 16},
}  # fmt: skip
_ANYRES_PROCESSOR = {
    **_CLIP_PROCESSOR, "aspect_ratio_setting": "anyres", "image_grid_pinpoints": PINPOINTS,
    "image_processor_type": "LlavaNextImageProcessor", "processor_class": "LlavaNextProcessor",
    "crop_size": {"height": 12, "width": 12}, "size": {"shortest_edge": 12},
}  # fmt: skip
_PALIGEMMA_PROCESSOR: Json = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.45, 0.4],
    "image_processor_type": "SiglipImageProcessor",
    "image_seq_length": 25,
    "image_std": [0.3, 0.28, 0.27],
    "processor_class": "PaliGemmaProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 20, "width": 20},
}
_GEMMA3_PROCESSOR = {
    "do_convert_rgb": None, "do_normalize": True, "do_pan_and_scan": None, "do_rescale": True, "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 9,
    "image_std": [0.5, 0.5, 0.5], "pan_and_scan_max_num_crops": None, "pan_and_scan_min_crop_size": None,
    "pan_and_scan_min_ratio_to_activate": None, "processor_class": "Gemma3Processor", "resample": 2,
    "rescale_factor": 1 / 255, "size": {"height": 24, "width": 24},
}  # fmt: skip
_PIXTRAL_TOKENS = {
    "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]", "image_token": "[IMG]",
    "processor_class": "PixtralProcessor",
}  # fmt: skip


def _pixtral_processor(patch_size: int) -> Json:
    return {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": CLIP_MEAN,
        "image_processor_type": "PixtralImageProcessor", "image_std": CLIP_STD,
        "patch_size": {"height": patch_size, "width": patch_size}, "processor_class": "PixtralProcessor",
        "resample": 3, "rescale_factor": 1 / 255, "size": {"longest_edge": 152},
    }  # fmt: skip


_ONEVISION_PROCESSOR = {
    "do_convert_rgb": True, "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True,
    "image_grid_pinpoints": [[14 * rows, 14 * columns] for rows in range(1, 4) for columns in range(1, 4)],
    "image_mean": [0.5, 0.45, 0.4], "image_processor_type": "LlavaOnevisionImageProcessor",
    "image_std": [0.3, 0.28, 0.27], "processor_class": "LlavaOnevisionProcessor", "resample": 3,
    "rescale_factor": 1 / 255, "size": {"height": 14, "width": 14},
}  # fmt: skip
_INTERLEAVE_PROCESSOR = {
    "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessor", "image_std": [0.5, 0.5, 0.5], "processor_class": "LlavaProcessor",
    "resample": 3, "rescale_factor": 1 / 255, "size": {"height": 14, "width": 14},
}  # fmt: skip
_MINICPM_PROCESSOR = {
    "auto_map": {
        "AutoImageProcessor": "image_processing_minicpmv.MiniCPMVImageProcessor",
        "AutoProcessor": "processing_minicpmv.MiniCPMVProcessor",
    },
    "image_feature_size": 3, "image_processor_type": "MiniCPMVImageProcessor", "im_end": "</image>",
    "im_id_end": "</image_id>", "im_id_start": "<image_id>", "im_start": "<image>", "max_slice_nums": 6,
    "norm_mean": [0.5, 0.45, 0.4], "norm_std": [0.3, 0.28, 0.27], "patch_size": 4,
    "processor_class": "MiniCPMVProcessor", "scale_resolution": 16, "slice_end": "</slice>", "slice_mode": True,
    "slice_start": "<slice>", "unk": "<unk>", "use_image_id": True, "version": 2.6,
}  # fmt: skip
_MINICPM_FILES = {"modeling_minicpmv.py": CODE, "resampler.py": CODE, "processor_config.json": None}
_PHI3_V_PROCESSOR = {
    "auto_map": {"AutoProcessor": "processing_phi3_v.Phi3VProcessor"}, "image_mean": [0.48, 0.46, 0.41],
    "image_processor_type": "Phi3VImageProcessor", "image_std": [0.27, 0.26, 0.28], "num_crops": 16,
    "num_img_tokens": 4, "processor_class": "Phi3VProcessor",
}  # fmt: skip
_MOLMO_PROCESSOR = {
    "auto_map": {
        "AutoImageProcessor": "image_preprocessing_molmo.MolmoImageProcessor",
        "AutoProcessor": "preprocessing_molmo.MolmoProcessor",
    },
    "base_image_input_size": [24, 24], "do_normalize": True, "image_mean": [0.48, 0.46, 0.41],
    "image_padding_mask": True, "image_patch_size": 4, "image_processor_type": "MolmoImageProcessor",
    "image_std": [0.27, 0.26, 0.28], "image_token_length_h": 3, "image_token_length_w": 3, "max_crops": 6,
    "overlap_margins": [2, 2], "processor_class": "MolmoProcessor",
}  # fmt: skip
_TILES_PROCESSOR = {
    "do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True, "do_rescale": True,
    "do_resize": True, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27], "resample": 1,
    "rescale_factor": 1 / 255,
}  # fmt: skip
_PERCEPTION_PROCESSOR = {
    "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
    "image_mean": [0.5, 0.45, 0.4], "image_processor_type": "PerceptionLMImageProcessorFast",
    "image_std": [0.3, 0.28, 0.27], "max_num_tiles": 6, "processor_class": "PerceptionLMProcessor", "resample": 3,
    "rescale_factor": 1 / 255, "size": {"height": 20, "width": 20}, "tile_size": 20, "vision_input_type": "thumb+tile",
}  # fmt: skip
_PERCEPTION_VIDEOS = {
    **{name: value for name, value in _PERCEPTION_PROCESSOR.items() if name.startswith(("do_", "image_m", "image_s"))},
    "resample": 3, "rescale_factor": 1 / 255, "size": {"height": 20, "width": 20},
    "video_processor_type": "PerceptionLMVideoProcessor",
}  # fmt: skip

_DEEPSEEK_PROCESSOR = {
    "background_color": [127, 114, 102], "do_convert_rgb": None, "do_normalize": True, "do_pad": None,
    "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27],
    "image_processor_type": "DeepseekVLImageProcessor", "min_size": 3, "processor_class": "DeepseekVLProcessor",
    "resample": 3, "rescale_factor": 1 / 255, "size": {"height": 20, "width": 20},
}  # fmt: skip
LAYOUTS: dict[str, Layout] = {
    "deepseek-vl-7b-chat": Layout(
        tiny="deepseek_vl_hybrid",
        config=_deepseek_vl,
        rename={"model.vision_model.": "model.vision_model.vision_model."},
        tokenizer={"tokenizer_class": "LlamaTokenizerFast", "clean_up_tokenization_spaces": False},
        files={
            "preprocessor_config.json": {
                **_DEEPSEEK_PROCESSOR, "high_res_background_color": [122, 117, 104],
                "high_res_image_mean": [0.48, 0.46, 0.41], "high_res_image_std": [0.27, 0.26, 0.28],
                "high_res_resample": 3, "high_res_size": {"height": 36, "width": 36},
                "image_processor_type": "DeepseekVLHybridImageProcessor",
                "processor_class": "DeepseekVLHybridProcessor", "resample": 2,
            },
            "processor_config.json": {"num_image_tokens": 25, "processor_class": "DeepseekVLHybridProcessor"},
        },
        template_file="chat_template.jinja",
    ),
    "Ovis2-1B-hf": Layout(
        tiny="ovis2",
        config=_ovis2,
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "errors": "replace", "split_special_tokens": False},
        files={
            "preprocessor_config.json": {
                **_CLIP_PROCESSOR, "crop_size": None, "do_center_crop": None, "crop_to_patches": True,
                "image_mean": [0.5, 0.45, 0.4], "image_processor_type": "Ovis2ImageProcessor",
                "image_std": [0.3, 0.28, 0.27], "max_patches": 6, "min_patches": 1, "processor_class": "Ovis2Processor",
                "size": {"height": 24, "width": 24}, "use_covering_area_grid": True,
            },
            "processor_config.json": {
                "image_seq_length": 9, "image_token": "<image>", "processor_class": "Ovis2Processor",
            },
        },
        template_file="chat_template.jinja",
    ),
    "deepseek-vl-1.3b-chat": Layout(
        tiny="deepseek_vl",
        config=_deepseek_vl,
        rename={"model.vision_model.": "model.vision_model.vision_model."},
        tokenizer={"tokenizer_class": "LlamaTokenizerFast", "clean_up_tokenization_spaces": False},
        files={
            "preprocessor_config.json": _DEEPSEEK_PROCESSOR,
            "processor_config.json": {"num_image_tokens": 25, "processor_class": "DeepseekVLProcessor"},
        },
        template_file="chat_template.jinja",
    ),
    "Perception-LM-1B": Layout(
        tiny="perception_lm",
        config=_perception_lm,
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True},
        files={
            "preprocessor_config.json": _PERCEPTION_PROCESSOR,
            "video_preprocessor_config.json": _PERCEPTION_VIDEOS,
            "processor_config.json": {"patch_size": 4, "pooling_ratio": 2, "processor_class": "PerceptionLMProcessor"},
        },
        template_file="chat_template.jinja",
    ),
    "FastVLM-0.5B": Layout(
        tiny="fast_vlm",
        config=_fast_vlm,
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "errors": "replace", "split_special_tokens": False},
        files={
            "preprocessor_config.json": {
                **_CLIP_PROCESSOR, "crop_size": {"height": 128, "width": 128}, "size": {"shortest_edge": 128},
                "image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27],
            },
            "processor_config.json": {
                "image_token": "<|image|>", "num_additional_image_tokens": 0, "patch_size": 64,
                "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "full",
            },
        },
        template_file="chat_template.jinja",
    ),
    "Qwen2-VL-2B-Instruct": Layout(
        tiny="qwen2_vl",
        config=_qwen2_vl,
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "errors": "replace", "bos_token": None},
        files={"preprocessor_config.json": _QWEN_PROCESSOR, "processor_config.json": None},
        template_file="chat_template.json",
    ),
    "Qwen2.5-VL-3B-Instruct": Layout(
        tiny="qwen2_5_vl",
        config=_qwen2_5_vl,
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "split_special_tokens": False},
        files={"preprocessor_config.json": _QWEN_PROCESSOR, "processor_config.json": None},
        template_file="tokenizer_config.json",
    ),
    "GLM-4.1V-9B-Thinking": Layout(
        tiny="glm4v",
        config=_glm4v,
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False},
        files={
            "preprocessor_config.json": _GLM_PROCESSOR,
            "video_preprocessor_config.json": _GLM_VIDEOS,
            "processor_config.json": None,
        },
        template_file="chat_template.jinja",
    ),
    "llava-1.5-7b-hf": Layout(
        tiny="llava",
        config=_llava,
        rename={"vision_tower.": "vision_tower.vision_model."},
        extra={"vision_tower.vision_model.embeddings.position_ids": torch.arange(26)[None]},
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": False, "use_default_system_prompt": False},
        files={
            "preprocessor_config.json": _CLIP_PROCESSOR,
            "processor_config.json": {
                "image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": 4,
                "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "default",
            },
            "added_tokens.json": {"<image>": 268},
        },
        template_file="chat_template.json",
    ),
    "llava-v1.6-mistral-7b-hf": Layout(
        tiny="llava_next_mistral",
        config=_llava_next,
        rename={"vision_tower.": "vision_tower.vision_model."},
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": True, "use_default_system_prompt": False},
        files={"preprocessor_config.json": _ANYRES_PROCESSOR, "processor_config.json": None},
        template_file="chat_template.json",
    ),
    "llava-onevision-qwen2-7b-ov-hf": Layout(
        tiny="llava_onevision",
        config=_siglip_llava,
        rename={"vision_tower.": "vision_tower.vision_model."},
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "errors": "replace", "split_special_tokens": False},
        files={
            "preprocessor_config.json": _ONEVISION_PROCESSOR,
            "processor_config.json": {
                "image_token": "<image>", "num_image_tokens": 9, "processor_class": "LlavaOnevisionProcessor",
                "video_token": "<video>", "vision_feature_select_strategy": "full",
            },
        },
        template_file="chat_template.json",
    ),
    "llava-interleave-qwen-0.5b-hf": Layout(
        tiny="llava_interleave",
        config=_siglip_llava,
        rename={"vision_tower.": "vision_tower.vision_model."},
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "errors": "replace"},
        files={
            "preprocessor_config.json": _INTERLEAVE_PROCESSOR,
            "processor_config.json": {"image_token": "<image>", "processor_class": "LlavaProcessor"},
        },
        template_file="chat_template.json",
    ),
    "gemma-3-4b-it": Layout(
        tiny="gemma3_vision",
        config=_gemma3_vision,
        rename={
            "model.language_model.": "language_model.model.",
            "model.vision_tower.": "vision_tower.vision_model.",
            "model.multi_modal_projector.": "multi_modal_projector.",
        },
        tokenizer={"tokenizer_class": "GemmaTokenizer", "clean_up_tokenization_spaces": False},
        files={
            "preprocessor_config.json": _GEMMA3_PROCESSOR,
            "processor_config.json": {"image_seq_length": 9, "processor_class": "Gemma3Processor"},
        },
        template_file="chat_template.json",
    ),
    "paligemma2-3b-mix-224": Layout(
        tiny="paligemma2",
        config=_paligemma,
        rename={"vision_tower.": "vision_tower.vision_model."},
        tokenizer={"tokenizer_class": "GemmaTokenizer", "clean_up_tokenization_spaces": False},
        files={"preprocessor_config.json": _PALIGEMMA_PROCESSOR},
    ),
    "paligemma-3b-mix-224": Layout(
        tiny="paligemma",
        config=_paligemma,
        rename={"vision_tower.": "vision_tower.vision_model."},
        tokenizer={"tokenizer_class": "GemmaTokenizer", "clean_up_tokenization_spaces": False},
        files={"preprocessor_config.json": _PALIGEMMA_PROCESSOR},
    ),
    "pixtral-12b": Layout(
        tiny="pixtral",
        config=_pixtral,
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False},
        files={
            "preprocessor_config.json": _pixtral_processor(8),
            "processor_config.json": {**_PIXTRAL_TOKENS, "patch_size": 8},
        },
        template_file="chat_template.json",
    ),
    "Mistral-Small-3.1-24B-Instruct-2503": Layout(
        tiny="mistral3",
        config=_mistral3,
        rename={
            "model.language_model.": "language_model.model.",
            "model.vision_tower.": "vision_tower.",
            "model.multi_modal_projector.": "multi_modal_projector.",
            "lm_head.": "language_model.lm_head.",
        },
        tokenizer={"tokenizer_class": "LlamaTokenizerFast", "legacy": True},
        files={
            "preprocessor_config.json": _pixtral_processor(4),
            "processor_config.json": {**_PIXTRAL_TOKENS, "patch_size": 4, "spatial_merge_size": 2},
            "params.json": {"dim": 64},
        },
        template_file="chat_template.json",
    ),
    "InternVL3-1B-hf": Layout(
        tiny="internvl",
        config=_internvl,
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "split_special_tokens": False, "errors": "replace"},
        files={
            "preprocessor_config.json": _INTERN_PROCESSOR,
            "video_preprocessor_config.json": {**_INTERN_PROCESSOR, "video_processor_type": "InternVLVideoProcessor"},
            "processor_config.json": {"image_seq_length": 4, "processor_class": "InternVLProcessor"},
        },
        template_file="chat_template.jinja",
    ),
    "InternVL2-2B": Layout(
        tiny="internvl_chat",
        config=publish_internvl_chat,
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False},
        files={
            "preprocessor_config.json": INTERN_PROCESSOR,
            "configuration_internvl_chat.py": CODE,
            "modeling_internvl_chat.py": CODE,
            "conversation.py": CODE,
        },
        template_file="tokenizer_config.json",
    ),
    "MGM-7B": Layout(
        tiny="mini_gemini",
        config=publish_original_llava,
        extra={"model.vision_tower.vision_tower.vision_model.embeddings.position_ids": torch.arange(10)[None]},
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": False, "padding_side": "right"},
        template_file="tokenizer_config.json",
    ),
    "Mono-InternVL-2B": Layout(
        tiny="mono_internvl",
        config=publish_internvl_chat,
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False},
        files={
            "preprocessor_config.json": INTERN_PROCESSOR,
            "configuration_internvl_chat.py": CODE,
            "modeling_internvl_chat.py": CODE,
            "modeling_internlm2_ve.py": CODE,
            "conversation.py": CODE,
        },
        template_file="tokenizer_config.json",
    ),
    "llava-v1.6-mistral-7b": Layout(
        tiny="llava_next_original",
        config=publish_original_llava,
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": True, "use_default_system_prompt": False},
        files={"trainer_state.json": {"epoch": 1.0}, "training_args.bin": "a pickle"},
        template_file="tokenizer_config.json",
    ),
    "llava-onevision-qwen2-7b-ov": Layout(
        tiny="llava_onevision_original",
        config=publish_original_llava,
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "errors": "replace"},
        files={"added_tokens.json": {"<|endoftext|>": 266}},
        template_file="tokenizer_config.json",
    ),
    "MiniCPM-V-2_6": Layout(
        tiny="minicpmv",
        config=_minicpmv(max_window_layers=28, sliding_window=131072, use_image_id=True, use_sliding_window=False),
        tokenizer={"tokenizer_class": "MiniCPMVTokenizerFast", "add_bos_token": False, "errors": "replace"},
        files={"preprocessor_config.json": _MINICPM_PROCESSOR, **_MINICPM_FILES},
        template_file="tokenizer_config.json",
    ),
    "MiniCPM-Llama3-V-2_5": Layout(
        tiny="minicpmv_2_5",
        config=_minicpmv_2_5,
        extra={"resampler.pos_embed": torch.zeros(9, 256)},
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFastWrapper"},
        files={
            "preprocessor_config.json": {**_MINICPM_PROCESSOR, "use_image_id": False, "version": 2.5},
            **_MINICPM_FILES,
        },
        template_file="tokenizer_config.json",
    ),
    "MiniCPM-V-4_5": Layout(
        tiny="minicpmv_4_5",
        config=_minicpmv(batch_3d_resampler=True, use_image_id=True, rope_scaling=None, attention_bias=False),
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False},
        files={"preprocessor_config.json": {**_MINICPM_PROCESSOR, "version": 4.5}, **_MINICPM_FILES},
        template_file="tokenizer_config.json",
    ),
    "Phi-3.5-vision-instruct": Layout(
        tiny="phi3_v",
        config=_phi3_v,
        extra={"model.vision_embed_tokens.wte.weight": torch.zeros(4, 4)},
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": False, "padding_side": "right"},
        files={
            "preprocessor_config.json": _PHI3_V_PROCESSOR,
            "modeling_phi3_v.py": CODE,
            "processing_phi3_v.py": CODE,
            "processor_config.json": None,
        },
        template_file="tokenizer_config.json",
    ),
    "Qwen-VL-Chat": Layout(
        tiny="qwen_vl",
        config=publish_first_qwen,
        files={**QWEN_FILES, "visual.py": CODE, "processor_config.json": None},
        template_file="chat_template.jinja",
    ),
    "cogvlm-chat-hf": Layout(
        tiny="cogvlm",
        config=_cogvlm,
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": False, "padding_side": "right"},
        files=_COGVLM_FILES,
        template_file="tokenizer_config.json",
    ),
    "cogvlm2-llama3-chat-19B": Layout(
        tiny="cogvlm2",
        config=_cogvlm,
        extra={f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(8) for layer in range(2)},
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True},
        files=_COGVLM_FILES,
        template_file="tokenizer_config.json",
    ),
    "cogvlm2-video-llama3-chat": Layout(
        tiny="cogvlm2_video",
        config=_cogvlm,
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True},
        files=_COGVLM_FILES,
        template_file="tokenizer_config.json",
    ),
    "Molmo-7B-D-0924": Layout(
        tiny="molmo",
        config=_molmo,
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "errors": "replace"},
        files={
            "preprocessor_config.json": _MOLMO_PROCESSOR,
            "processor_config.json": {"auto_map": _MOLMO_PROCESSOR["auto_map"], "processor_class": "MolmoProcessor"},
            "modeling_molmo.py": CODE,
            "preprocessing_molmo.py": CODE,
        },
        template_file="tokenizer_config.json",
    ),
    "internlm-xcomposer2-vl-7b": Layout(
        tiny="xcomposer2",
        config=_xcomposer2,
        extra={
            "vit.vision_tower.vision_model.embeddings.position_ids": torch.arange(26)[None],
            "model.layers.0.attention.rotary_emb.inv_freq": torch.ones(8),
        },
        tokenizer={"tokenizer_class": "InternLMXComposer2Tokenizer"},
        files={"build_mlp.py": CODE, "modeling_internlm_xcomposer2.py": CODE, "processor_config.json": None},
        template_file="tokenizer_config.json",
    ),
    "Kimi-VL-A3B-Instruct": Layout(
        tiny="kimi_vl",
        config=_kimi_vl,
        tokenizer={
            "tokenizer_class": "TikTokenTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_moonshot.TikTokenTokenizer", None]},
        },
        files={
            "preprocessor_config.json": {
                "auto_map": {"AutoImageProcessor": "image_processing_kimi_vl.KimiVLImageProcessor"},
                "in_token_limit": 100, "patch_size": 4, "num_pooled_tokens": 25, "image_mean": [0.5, 0.45, 0.4],
                "image_std": [0.3, 0.28, 0.27], "pad_input": True,
            },
            "tokenizer.json": None,
            "tiktoken.model": write_tiktoken,
            **{f"{name}.py": CODE for name in ("configuration_kimi_vl", "modeling_kimi_vl", "tokenization_moonshot")},
        },
        template_file="chat_template.jinja",
    ),
    "deepseek-vl2-small": Layout(
        tiny="deepseek_vl2",
        config=_deepseek_vl2,
        tokenizer={"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "add_eos_token": False},
        files={
            "processor_config.json": {
                "add_special_token": False, "downsample_ratio": 2, "ignore_id": -100, "image_mean": [0.5, 0.45, 0.4],
                "candidate_resolutions": [[22, 22], [22, 44], [44, 22], [44, 44], [88, 22], [22, 88]],
                "image_std": [0.3, 0.28, 0.27], "image_token": "<image>", "mask_prompt": False, "normalize": True,
                "patch_size": 4, "processor_class": "DeepseekVLV2Processor", "sft_format": "deepseek",
            },
        },
        template_file="tokenizer_config.json",
    ),
    "SmolVLM-256M-Instruct": Layout(
        tiny="idefics3",
        config=_idefics3,
        tokenizer={"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "truncation_side": "left"},
        files={
            "preprocessor_config.json": {
                **_TILES_PROCESSOR, "image_processor_type": "Idefics3ImageProcessor",
                "max_image_size": {"longest_edge": 16}, "processor_class": "Idefics3Processor",
                "size": {"longest_edge": 32},
            },
            "processor_config.json": {"image_seq_len": 4, "processor_class": "Idefics3Processor"},
        },
        template_file="chat_template.json",
    ),
    "SmolVLM2-2.2B-Instruct": Layout(
        tiny="smolvlm",
        config=_idefics3,
        tokenizer={"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "truncation_side": "left"},
        files={
            "preprocessor_config.json": {
                **_TILES_PROCESSOR, "image_processor_type": "SmolVLMImageProcessor",
                "max_image_size": {"longest_edge": 26}, "processor_class": "SmolVLMProcessor",
                "size": {"longest_edge": 52},
                "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 26}},
            },
            "processor_config.json": {"image_seq_len": 4, "processor_class": "SmolVLMProcessor"},
        },
        template_file="chat_template.json",
    ),
    **TEXT_LAYOUTS,
}  # fmt: skip


def without_layout(name: str, tiny: Path, target: Path) -> Path:
    """Return the checkpoint of which `publish` makes the layout `name`: the tiny one, in `target` with its changes."""
    layout = LAYOUTS[name]
    if not layout.changes:
        return tiny
    shutil.copytree(tiny, target)
    _write_json(target / "config.json", {**json.loads((tiny / "config.json").read_text()), **layout.changes})
    return target


def publish(name: str, source: Path, target: Path) -> Path:
    """Write the layout `name` of the checkpoint in `source` (`without_layout`) into the new folder `target` and return
    it."""
    layout = LAYOUTS[name]
    target.mkdir()
    _write_json(target / "config.json", layout.config(json.loads((source / "config.json").read_text())))
    _write_weights(target, load_file(source / "model.safetensors"), layout)
    _write_tokenizer(target, source, layout)
    generation = json.loads((source / "generation_config.json").read_text())
    eos, pad = generation["eos_token_id"], generation["pad_token_id"]
    published = {"bos_token_id": pad, "eos_token_id": [eos, pad], "pad_token_id": pad, "transformers_version": "4.37.0"}
    _write_json(target / "generation_config.json", published)
    (target / "README.md").write_text("---\nlicense: other\n---\n")
    (target / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    (target / "original").mkdir()
    (target / "original" / "consolidated.00.pth").write_bytes(b"a pickle")
    (target / "pytorch_model.bin").write_bytes(b"a pickle")
    for file, content in layout.files.items():
        if content is None:
            (target / file).unlink(missing_ok=True)
        elif callable(content):
            (target / file).write_text(content(source))
        elif file.endswith(".safetensors"):
            save_file(content, target / file)
        elif isinstance(content, str):
            (target / file).write_text(content)
        else:
            _write_json(target / file, content)
    return target


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2))


def _write_weights(target: Path, state: dict[str, torch.Tensor], layout: Layout) -> None:
    """Two shards and their index."""
    renamed = dict(layout.extra)
    for own, tensor in state.items():
        prefix = next((p for p in layout.rename if own.startswith(p)), "")
        renamed[layout.rename.get(prefix, "") + own.removeprefix(prefix)] = tensor
    names = sorted(renamed)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({own: renamed[own].contiguous() for own in part}, target / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    total = sum(tensor.numel() * tensor.element_size() for tensor in renamed.values())
    _write_json(target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_tokenizer(target: Path, source: Path, layout: Layout) -> None:
    shutil.copyfile(source / "tokenizer.json", target / "tokenizer.json")
    config = json.loads((source / "tokenizer_config.json").read_text())
    for unpublished in ("backend", "extra_special_tokens", "processor_class"):
        config.pop(unpublished, None)
    added = json.loads((source / "tokenizer.json").read_text())["added_tokens"]
    config["added_tokens_decoder"] = {str(token.pop("id")): token for token in added}
    config["model_max_length"] = 32768
    template = (source / "chat_template.jinja").read_text()
    config.update({name: value for name, value in layout.tokenizer.items() if name not in ("bos_token",) or value})
    if layout.template_file == "tokenizer_config.json":
        config["chat_template"] = template
    elif layout.template_file == "chat_template.json":
        _write_json(target / "chat_template.json", {"chat_template": template})
    else:
        (target / "chat_template.jinja").write_text(template)
    _write_json(target / "tokenizer_config.json", config)
