"""What tiny checkpoints in the layouts of models' authors share: InternLM2's names, configurations, tokenizers. The
checkpoints are in `published_originals.py` and `vl/published_checkpoints.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from enrolment import SIBLING

Json = dict[str, Any]
State = dict[str, torch.Tensor]

CODE = "raise RuntimeError('code of a checkpoint was run')\n"


# --- decoders ---------------------------------------------------------------------------------------------------------


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
