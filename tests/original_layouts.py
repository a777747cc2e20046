"""Tiny checkpoints in the layouts of models' authors. The same weights in Transformers' layout lie in the folder
`SIBLING`, of which they are made. Those of InternVLChat and LLaVA are in `published_originals.py`.

Names, order and fields are those of the published files; the code that is named in them is not run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
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


# --- DeepSeek-VL ------------------------------------------------------------------------------------------------------

_SAM_NECK = ((".conv1.", ".0."), (".layer_norm1.", ".1."), (".conv2.", ".2."), (".layer_norm2.", ".3."))
_SAM = (
    ("high_res_vision_model.vision_encoder.", "vision_model.vision_tower_high.vision_tower."),
    ("high_res_vision_neck.", "vision_model.vision_tower_high.vision_tower.neck_hd."),
    ("high_res_vision_proj.conv1.", "vision_model.vision_tower_high.vision_tower.downsamples.0."),
    ("high_res_vision_proj.conv2.", "vision_model.vision_tower_high.vision_tower.downsamples.1."),
    ("high_res_vision_alpha", "vision_model.vision_tower_high.vision_tower.hd_alpha_downsamples"),
    (".patch_embed.projection.", ".patch_embed.proj."),
    (".layers.", ".blocks."),
    (".layer_norm", ".norm"),
)
_TIMM_SIGLIP = (
    (".embeddings.position_embedding.weight", ".pos_embed"),
    (".embeddings.patch_embedding.", ".patch_embed.proj."),
    (".encoder.layers.", ".blocks."),
    (".self_attn.out_proj.", ".attn.proj."),
    (".layer_norm", ".norm"),
    (".post_layernorm.", ".norm."),
)
_DEEPSEEK_ALIGNER = (
    ("aligner.linear1.", "aligner.layers.0."),
    ("aligner.linear2.", "aligner.layers.2."),
    ("aligner.vision_proj.", "aligner.low_up_proj."),
    ("aligner.high_res_vision_proj.", "aligner.high_up_proj."),
    ("aligner.proj.", "aligner.layers.1."),
)


def write_original_deepseek_vl(path: Path) -> None:
    """Write a MultiModalityCausalLM of the DeepSeek-VL in `path / SIBLING`. Its towers are small ones, whose sizes
    stand beside their names."""
    sibling = path / SIBLING
    config = json.loads((sibling / "config.json").read_text())
    settings = json.loads((sibling / "processor_config.json").read_text())["image_processor"]
    decoder, others = split_state(sibling)
    tensors = {f"language_model.{name}": tensor for name, tensor in name_as_causal(decoder).items()}
    is_hybrid = "high_res_vision_config" in config
    tensors |= _name_as_deepseek(others, "vision_tower_low.vision_tower" if is_hybrid else "vision_tower")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(_publish_deepseek_vl(config, settings)))
    processor = {
        "background_color": [127, 127, 127], "image_processor_type": "VLMImageProcessor", "min_size": 3,
        "processor_class": "VLChatProcessor", "rescale_factor": 1 / 255, "image_size": 36 if is_hybrid else 20,
        "do_normalize": not is_hybrid, "image_mean": settings["image_mean"], "image_std": settings["image_std"],
    }  # fmt: skip
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    chat = {"add_special_token": False, "ignore_id": -100, "image_tag": "<image_placeholder>", "mask_prompt": True}
    chat |= {"num_image_tokens": 25, "processor_class": "VLChatProcessor", "sft_format": "deepseek"}
    (path / "processor_config.json").write_text(json.dumps(chat))
    copy_tokenizer(path)


def _name_as_deepseek(state: State, low: str) -> State:
    """Return the tensors of towers and aligner under the authors' names. low: that of the SigLIP in its tower."""
    tensors: State = {f"vision_model.{low}.attn_pool.latent": torch.zeros(1, 1, 4)}
    if "low" in low:
        tensors |= {f"vision_model.{side}_layer_norm.weight": torch.ones(4) for side in ("high", "low")}
    for name, tensor in state.items():
        if name.startswith("high_res_"):
            neck = _SAM_NECK if "neck." in name else ()
            tensors[_replace(name, (*neck, *_SAM))] = tensor
        elif name.startswith("aligner."):
            tensors[_replace(name, _DEEPSEEK_ALIGNER)] = tensor
        elif ".head." not in name:
            inner = name.removeprefix("vision_model.").removeprefix("vision_model.")
            renamed = _replace(f"vision_model.{low}.{inner}", _TIMM_SIGLIP)
            if ".q_proj." in name:
                parts = [state[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
                tensors[renamed.replace(".self_attn.q_proj.", ".attn.qkv.")] = torch.cat(parts)
            elif ".k_proj." not in name and ".v_proj." not in name:
                tensors[renamed] = tensor[None] if renamed.endswith(".pos_embed") else tensor
    return tensors


def _replace(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    for known, original in pairs:
        name = name.replace(known, original)
    return name


def _publish_deepseek_vl(config: Json, settings: Json) -> Json:
    siglip = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "patch_size")
    sam = (*(name for name in siglip if name != "intermediate_size"), "mlp_dim", "output_channels", "window_size")
    own, high = config["vision_config"], config.get("high_res_vision_config")
    chosen = {"select_feature": "same", "select_layer": -1, "image_size": own["image_size"]}
    low = {"model_name": "siglip_large_patch16_384", **chosen, **{name: own[name] for name in siglip}}
    size = config["text_config"]["hidden_size"]
    projector = {"depth": 2, "input_dim": own["hidden_size"], "n_embed": size, "projector_type": "mlp_gelu"}
    vision: Json = {"cls": "CLIPVisionTower", "model_type": "vision", "params": low}
    if high is not None:
        large = {"model_name": "sam_b_downsample", "ckpt_path": "", **chosen, "image_size": high["image_size"]}
        large |= {name: high[name] for name in (*sam, "global_attn_indexes")}
        large |= {f"pixel_{name}": settings[f"high_res_image_{name}"] for name in ("mean", "std")}
        low |= {f"pixel_{name}": settings[f"image_{name}"] for name in ("mean", "std")}
        both = {"concat_type": "tuple", "freeze_high": True, "freeze_low": True, "high_res_cfg": large}
        vision = {"cls": "HybridVisionTower", "model_type": "vision", "params": {**both, "low_res_cfg": low}}
        projector["projector_type"] = "low_high_hybrid_split_mlp_gelu"
    return {
        "aligner_config": {"cls": "MlpProjector", "model_type": "aligner", "params": projector},
        "architectures": ["MultiModalityCausalLM"],
        "language_config": publish_text(config["text_config"], architectures=["LlamaForCausalLM"]),
        "model_type": "multi_modality",
        "torch_dtype": "float32",
        "transformers_version": "4.38.2",
        "vision_config": vision,
    }


# --- Ovis 2 -----------------------------------------------------------------------------------------------------------

_AIM = (
    ("vision_tower.head_linear.", "visual_tokenizer.head.0."),
    ("vision_tower.head_norm.", "visual_tokenizer.head.1."),
    ("visual_embeddings_table.", "vte."),
    ("vision_tower.transformer.", "visual_tokenizer.backbone."),
    (".embeddings.patch_embedding.", ".preprocessor.patchifier.proj."),
    (".embeddings.rms_norm.", ".preprocessor.patchifier.norm."),
    (".embeddings.position_embedding.weight", ".preprocessor.pos_embed"),
    (".backbone.rms_norm.", ".backbone.trunk.post_trunk_norm."),
    (".encoder.layers.", ".trunk.blocks."),
    (".rms_norm", ".norm_"),
    (".attention.out_proj.", ".attn.proj."),
    (".ffn.gate_proj.", ".mlp.fc1."),
    (".ffn.down_proj.", ".mlp.fc2."),
    (".ffn.up_proj.", ".mlp.fc3."),
)


def write_original_ovis2(path: Path) -> None:
    """Write an Ovis of the Ovis 2 in `path / SIBLING`. Its tokenizer has no tokens for pictures, and its template does
    not write them."""
    sibling = path / SIBLING
    config = json.loads((sibling / "config.json").read_text())
    settings = json.loads((sibling / "processor_config.json").read_text())["image_processor"]
    decoder, others = split_state(sibling)
    tensors = {f"llm.{name}": tensor for name, tensor in name_as_causal(decoder).items()}
    for name, tensor in others.items():
        renamed = _replace(name, _AIM)
        if ".q_proj." in name:
            parts = [others[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            tensors[renamed.replace(".attention.q_proj.", ".attn.qkv.")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            tensors[renamed] = tensor[None] if renamed.endswith(".pos_embed") else tensor
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(_publish_ovis2(config)))
    side = config["vision_config"]["image_size"]
    clip = {
        "crop_size": {"height": side, "width": side}, "do_center_crop": True, "do_convert_rgb": True,
        "do_normalize": True, "do_rescale": True, "do_resize": True, "image_processor_type": "CLIPImageProcessor",
        "resample": 3, "rescale_factor": 1 / 255, "size": {"shortest_edge": side},
        **{name: settings[name] for name in ("image_mean", "image_std")},
    }  # fmt: skip
    (path / "preprocessor_config.json").write_text(json.dumps(clip))
    for code in ("configuration_aimv2", "configuration_ovis", "modeling_aimv2", "modeling_ovis"):
        (path / f"{code}.py").write_text(CODE)
    copy_tokenizer(path, *(f"<IMG_{name}>" for name in ("ATOM", "START", "GRID", "COL", "ROW", "END")))
    (path / "chat_template.jinja").write_text("{{ messages[0]['content'] + ' as Qwen has it' }}")


def _publish_ovis2(config: Json) -> Json:
    own, text = config["vision_config"], config["text_config"]
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "patch_size", "image_size")
    backbone = {name: own[name] for name in (*kept, "num_channels", "rms_norm_eps", "qkv_bias")}
    backbone |= {"attention_dropout": 0.0, "model_type": "aimv2", "projection_dropout": 0.0, "use_bias": False}
    tokenizer = {name: own[name] for name in ("hidden_stride", "tokenize_function", "vocab_size")}
    tokenizer |= {"backbone_config": backbone, "backbone_kwargs": {}, "depths": None, "drop_cls_token": False}
    return {
        "architectures": ["Ovis"],
        "auto_map": {"AutoConfig": "configuration_ovis.OvisConfig", "AutoModelForCausalLM": "modeling_ovis.Ovis"},
        "conversation_formatter_class": "QwenConversationFormatter",
        "disable_tie_weight": False,
        "hidden_size": text["hidden_size"],
        "llm_attn_implementation": "flash_attention_2",
        "llm_config": publish_text(text, architectures=["Qwen2ForCausalLM"], tie_word_embeddings=False),
        "model_type": "ovis",
        "multimodal_max_length": 32768,
        "torch_dtype": "float32",
        "transformers_version": "4.46.2",
        "use_cache": False,
        "visual_tokenizer_config": {"model_type": "aimv2_visual_tokenizer", "tau": 1.0, **tokenizer},
    }


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
