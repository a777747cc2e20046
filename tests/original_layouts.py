"""Tiny checkpoints in the layouts of models' authors. The same weights in Transformers' layout lie in the folder
`SIBLING`, of which they are made.

Names, order and fields are those of the published files; the code that is named in them is not run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from enrolment import SIBLING
from safetensors.torch import load_file, save_file

Json = dict[str, Any]
State = dict[str, torch.Tensor]

CODE = "raise RuntimeError('code of a checkpoint was run')\n"


# --- decoders ---------------------------------------------------------------------------------------------------------


def split_state(folder: Path) -> tuple[State, State]:
    """Return the decoder's tensors of a vision-language model, named as in the decoder itself, and the others."""
    decoder: State = {}
    others: State = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        inner = name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")
        is_decoder = "language_model." in name or name == "lm_head.weight"
        (decoder if is_decoder else others)[inner if is_decoder else name.removeprefix("model.")] = tensor
    return decoder, others


def name_as_internlm2(state: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> State:
    """Return a Llama's tensors, named as in the decoder itself, under InternLM2's names: queries, keys and values of a
    group of heads together. Additions of low rank are among them, but for the first matrices of those to queries, keys
    and values."""
    groups, size = config["num_key_value_heads"], config["hidden_size"] // config["num_attention_heads"]
    tensors = {"model.tok_embeddings.weight": state["embed_tokens.weight"]}
    tensors |= {"model.norm.weight": state["norm.weight"], "output.weight": state["lm_head.weight"]}
    for layer in range(config["num_hidden_layers"]):
        name, own = f"model.layers.{layer}", f"layers.{layer}."
        for kind in ("weight", "bias", "Plora_B.weight"):
            if f"{own}self_attn.q_proj.{kind}" not in state:
                continue
            parts = [state[f"{own}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            grouped = [part.view(groups, -1, size, *part.shape[1:]) for part in parts]
            tensors[f"{name}.attention.wqkv.{kind}"] = torch.cat(grouped, dim=1).flatten(0, 2)
            tensors[f"{name}.attention.wo.{kind}"] = state[f"{own}self_attn.o_proj.{kind}"]
        tensors[f"{name}.attention_norm.weight"] = state[f"{own}input_layernorm.weight"]
        tensors[f"{name}.ffn_norm.weight"] = state[f"{own}post_attention_layernorm.weight"]
        for stored, part in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
            for kind in ("weight", "Plora_B.weight"):
                if f"{own}mlp.{part}_proj.{kind}" in state:
                    tensors[f"{name}.feed_forward.{stored}.{kind}"] = state[f"{own}mlp.{part}_proj.{kind}"]
    return tensors


def name_as_causal(state: Mapping[str, torch.Tensor]) -> State:
    """Return a decoder's tensors under the names of a text model."""
    return {name if name.startswith("lm_head.") else f"model.{name}": tensor for name, tensor in state.items()}


def publish_text(config: Mapping[str, Any], **changes: Any) -> Json:
    """Return the configuration of a decoder as it was written before Transformers 5."""
    published = {name: value for name, value in config.items() if name not in ("dtype", "layer_types")}
    rope = dict(published.pop("rope_parameters"))
    published |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": None, "use_cache": True}
    return {**published, "torch_dtype": "float32", **changes}


# --- InternVL ---------------------------------------------------------------------------------------------------------

_INTERN_VIT = (
    (".cls_token", ".class_embedding"),
    (".patch_embeddings.projection.", ".patch_embedding."),
    (".position_embeddings", ".position_embedding"),
    (".encoder.layer.", ".encoder.layers."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".attention.projection_layer.", ".attn.proj."),
    (".attention.", ".attn."),
    (".lambda_1", ".ls1"),
    (".lambda_2", ".ls2"),
    ("vision_tower.", "vision_model."),
    ("multi_modal_projector.layer_norm.", "mlp1.0."),
    ("multi_modal_projector.linear_1.", "mlp1.1."),
    ("multi_modal_projector.linear_2.", "mlp1.3."),
)


INTERN_PROCESSOR = {
    "crop_size": 448, "do_center_crop": True, "do_normalize": True, "do_resize": True, "size": 448, "resample": 3,
    "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip
"""As published, which the authors' code does not read."""


def write_internvl_chat(path: Path, *, is_internlm2: bool, **changes: Any) -> None:
    """Write an InternVLChatModel of the InternVL in `path / SIBLING`."""
    sibling = path / SIBLING
    config = json.loads((sibling / "config.json").read_text())
    decoder, others = split_state(sibling)
    text = config["text_config"]
    named = name_as_internlm2(decoder, text) if is_internlm2 else name_as_causal(decoder)
    tensors = {f"language_model.{name}": tensor for name, tensor in named.items()}
    for name, tensor in others.items():
        renamed = name
        for known, original in _INTERN_VIT:
            renamed = renamed.replace(known, original)
        if ".q_proj." in name:
            parts = [others[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            tensors[renamed.replace(".q_proj.", ".qkv.")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            tensors[renamed] = tensor
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(_publish_internvl(config, is_internlm2=is_internlm2, **changes)))
    (path / "preprocessor_config.json").write_text(json.dumps(INTERN_PROCESSOR))
    for code in ("configuration_intern_vit", "configuration_internvl_chat", "modeling_intern_vit", "conversation"):
        (path / f"{code}.py").write_text(CODE)
    named_tokens = ("<img>", "</img>", "<IMG_CONTEXT>")
    copy_tokenizer(path, "<video>", extra_special_tokens=list(named_tokens))


def _publish_internvl(config: Json, *, is_internlm2: bool, **changes: Any) -> Json:
    own, text = config["vision_config"], config["text_config"]
    if is_internlm2:
        code = {"AutoConfig": "configuration_internlm2.InternLM2Config"}
        scaling = {"factor": 2.0, "type": "dynamic"}
        llm = publish_text(text, model_type="internlm2", architectures=["InternLM2ForCausalLM"], auto_map=code)
        llm |= {"bias": False, "attn_implementation": "eager", "rope_scaling": scaling}
        llm = {name: value for name, value in llm.items() if name not in ("attention_bias", "mlp_bias")}
    else:
        llm = publish_text(text, architectures=[f"{text['model_type'].capitalize()}ForCausalLM"])
    kept = ("hidden_act", "hidden_size", "intermediate_size", "layer_norm_eps", "norm_type", "num_hidden_layers")
    vision = {name: own[name] for name in (*kept, "num_attention_heads", "num_channels", "attention_dropout")}
    vision |= {"architectures": ["InternVisionModel"], "model_type": "intern_vit_6b", "use_flash_attn": True}
    vision |= {"qk_normalization": own["use_qk_norm"], "qkv_bias": own["attention_bias"], "drop_path_rate": 0.1}
    vision |= {"image_size": own["image_size"][0], "patch_size": own["patch_size"][0], "torch_dtype": "float32"}
    return {
        "_commit_hash": None,
        "architectures": ["InternVLChatModel"],
        "auto_map": {
            "AutoConfig": "configuration_internvl_chat.InternVLChatConfig",
            "AutoModel": "modeling_internvl_chat.InternVLChatModel",
            "AutoModelForCausalLM": "modeling_internvl_chat.InternVLChatModel",
        },
        "downsample_ratio": config["downsample_ratio"],
        "dynamic_image_size": True,
        "force_image_size": own["image_size"][0],
        "llm_config": llm,
        "max_dynamic_patch": 6,
        "min_dynamic_patch": 1,
        "model_type": "internvl_chat",
        "pad2square": False,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internlm2-chat" if is_internlm2 else "internvl2_5",
        "torch_dtype": "float32",
        "transformers_version": None,
        "use_backbone_lora": 0,
        "use_llm_lora": 0,
        "use_thumbnail": True,
        "vision_config": vision,
        **changes,
    }


# --- tokenizers -------------------------------------------------------------------------------------------------------


def copy_tokenizer(path: Path, *without: str, **changes: Any) -> None:
    """Copy the sibling's tokenizer and chat template, without the tokens `without`, its last ones, and without names
    that tokens have beside the usual ones."""
    sibling = path / SIBLING
    state = json.loads((sibling / "tokenizer.json").read_text())
    last = [state["added_tokens"].pop() for _ in without]
    assert {token["content"] for token in last} == set(without)
    (path / "tokenizer.json").write_text(json.dumps(state))
    config = json.loads((sibling / "tokenizer_config.json").read_text())
    kept = ("bos_token", "eos_token", "pad_token", "tokenizer_class", "model_max_length")
    published = {name: config[name] for name in kept if name in config}
    (path / "tokenizer_config.json").write_text(json.dumps({**published, **changes}))
    for file in ("chat_template.jinja", "generation_config.json"):
        shutil.copyfile(sibling / file, path / file)


# --- LLaVA ------------------------------------------------------------------------------------------------------------

_LLAVA_RELEASES: dict[str, Json] = {
    "LlavaLlamaForCausalLM": {
        "freeze_mm_mlp_adapter": False,
        "freeze_mm_vision_resampler": False,
        "image_aspect_ratio": "pad",
        "image_grid_pinpoints": None,
        "mm_resampler_type": None,
        "mm_vision_tower": "openai/clip-vit-large-patch14-336",
        "model_type": "llava",
        "pretraining_tp": 1,
        "tune_mm_vision_resampler": False,
        "unfreeze_mm_vision_tower": False,
    },
    "LlavaMistralForCausalLM": {
        "image_aspect_ratio": "anyres",
        "image_crop_resolution": 224,
        "image_split_resolution": 224,
        "mm_patch_merge_type": "spatial_unpad",
        "mm_resampler_type": None,
        "mm_vision_tower": "openai/clip-vit-large-patch14-336",
        "mm_vision_tower_lr": 2e-06,
        "model_type": "llava_mistral",
        "unfreeze_mm_vision_tower": True,
    },
    "LlavaQwenForCausalLM": {
        "image_aspect_ratio": "anyres_max_4",
        "image_crop_resolution": None,
        "image_split_resolution": None,
        "mm_newline_position": "one_token",
        "mm_patch_merge_type": "spatial_unpad",
        "mm_resampler_type": None,
        "mm_spatial_pool_mode": "bilinear",
        "mm_tunable_parts": "mm_vision_tower,mm_mlp_adapter,mm_language_model",
        "mm_vision_tower": "google/siglip-so400m-patch14-384",
        "model_type": "llava",
        "pos_skipping_range": 4096,
        "vision_tower_pretrained": None,
    },
}
"""Fields of published configurations: LLaVA-1.5, 1.6 (Mistral), OneVision."""


def write_original_llava(path: Path, name: str) -> None:
    """Write a `name`, such as a LlavaLlamaForCausalLM, of the LLaVA in `path / SIBLING`. Its tower is a small one, of
    which `vision_config` says the sizes."""
    sibling = path / SIBLING
    config = json.loads((sibling / "config.json").read_text())
    decoder, others = split_state(sibling)
    tensors = name_as_causal(decoder)
    for own, tensor in others.items():
        inner = own.removeprefix("vision_tower.")
        if inner != own:
            tensors[f"model.vision_tower.vision_tower.vision_model.{inner.removeprefix('vision_model.')}"] = tensor
        else:
            linear = own.replace("multi_modal_projector.linear_1.", "mm_projector.0.")
            tensors[f"model.{linear.replace('multi_modal_projector.linear_2.', 'mm_projector.2.')}"] = tensor
    save_file({own: tensor.contiguous() for own, tensor in tensors.items()}, path / "model.safetensors")
    published = publish_text(config["text_config"], architectures=[name], **_LLAVA_RELEASES[name])
    published |= {
        "mm_hidden_size": config["vision_config"]["hidden_size"],
        "mm_projector_type": "mlp2x_gelu",
        "mm_use_im_patch_token": False,
        "mm_use_im_start_end": False,
        "mm_vision_select_feature": "patch",
        "mm_vision_select_layer": -2,
        "tokenizer_model_max_length": 4096,
        "tokenizer_padding_side": "right",
        "transformers_version": "4.37.2",
        "tune_mm_mlp_adapter": False,
        "use_mm_proj": True,
        "vision_config": config["vision_config"],
    }
    if "image_grid_pinpoints" in config:
        published["image_grid_pinpoints"] = [[width, height] for height, width in config["image_grid_pinpoints"]]
    (path / "config.json").write_text(json.dumps(published))
    copy_tokenizer(path, "<image>", *(["<video>"] if "video_token_index" in config else []))


# --- whole configurations ---------------------------------------------------------------------------------------------

_UNUSED: Json = {
    "_name_or_path": "", "add_cross_attention": False, "bad_words_ids": None, "begin_suppress_tokens": None,
    "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "decoder_start_token_id": None,
    "diversity_penalty": 0.0, "do_sample": False, "early_stopping": False, "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None, "finetuning_task": None, "forced_bos_token_id": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False, "is_encoder_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0, "max_length": 20, "min_length": 0,
    "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1,
    "output_attentions": False, "output_hidden_states": False, "output_scores": False, "prefix": None,
    "problem_type": None, "pruned_heads": {}, "remove_invalid_values": False, "repetition_penalty": 1.0,
    "return_dict": True, "return_dict_in_generate": False, "sep_token_id": None, "suppress_tokens": None,
    "task_specific_params": None, "temperature": 1.0, "tf_legacy_loss": False, "tie_encoder_decoder": False,
    "tokenizer_class": None, "top_k": 50, "top_p": 1.0, "torchscript": False, "transformers_version": "4.37.2",
    "typical_p": 1.0, "use_bfloat16": True,
}  # fmt: skip
"""Fields of nested configurations in releases of 2024, which hold what all configurations had."""


def publish_internvl_chat(tiny: Json) -> Json:
    experts = {
        "capacity_factor": 1.2,
        "moe_config": None,
        "num_experts": 8,
        "use_moe": False,
        "noisy_gate_policy": None,
    }
    parts = {name: {**_UNUSED, **experts, **tiny[name]} for name in ("llm_config", "vision_config")}
    return {**tiny, **parts, "output_attentions": False, "system_message": None, "hidden_size": 64}


def publish_original_llava(tiny: Json) -> Json:
    """LLaVA-1.6 and OneVision, with a small tower."""
    return {
        **tiny,
        "_name_or_path": "./checkpoints/llava",
        "mm_projector_lr": None,
        "rope_scaling": None,
        "max_length": 4096,
    }
