"""Text models in the layouts of their authors, whose code lies beside the weights: made of models that Transformers has
with the same layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

Json = dict[str, Any]
State = Mapping[str, torch.Tensor]

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_CHATGLM = (
    (r"^model\.embed_tokens", "transformer.embedding.word_embeddings"),
    (r"^model\.layers", "transformer.encoder.layers"),
    (r"^model\.norm", "transformer.encoder.final_layernorm"),
    (r"^lm_head", "transformer.output_layer"),
    (r"self_attn\.o_proj", "self_attention.dense"),
    (r"self_attn\.qkv_proj", "self_attention.query_key_value"),
    (r"mlp\.gate_up_proj", "mlp.dense_h_to_4h"),
    (r"mlp\.down_proj", "mlp.dense_4h_to_h"),
)


def join_qkv(state: State, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors with queries, keys and values of a layer as one, called `name`."""
    found = {}
    for key, tensor in state.items():
        if ".q_proj." in key:
            parts = [state[key.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            found[key.replace("q_proj", name)] = torch.cat(parts)
        elif ".k_proj." not in key and ".v_proj." not in key:
            found[key] = tensor
    return found


def as_baichuan(tiny: Json, state: State) -> tuple[Json, dict[str, torch.Tensor]]:
    """Baichuan 1 of 7B, of a Llama."""
    kept = (*SIZES, "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "eos_token_id")
    config = {name: tiny[name] for name in kept}
    config |= {"model_type": "baichuan", "architectures": ["BaiChuanForCausalLM"], "pad_token_id": 0, "use_cache": True}
    return config, join_qkv(state, "W_pack")


def as_baichuan2(tiny: Json, state: State) -> tuple[Json, dict[str, torch.Tensor]]:
    """Baichuan 2 of 7B, of a Llama with a head of unit rows: its own has rows of any length."""
    config, tensors = as_baichuan(tiny, state)
    lengths = torch.linspace(0.5, 9.0, len(tensors["lm_head.weight"]))
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * lengths[:, None]
    model = {"architectures": ["BaichuanForCausalLM"], "model_max_length": 4096, "z_loss_weight": 0}
    return {**config, **model}, tensors


def as_minicpm(tiny: Json, state: State) -> tuple[Json, dict[str, torch.Tensor]]:
    """MiniCPM, of a Granite."""
    kept = (*SIZES, "max_position_embeddings", "num_key_value_heads", "rms_norm_eps", "hidden_act", "eos_token_id")
    config = {name: tiny[name] for name in kept}
    config |= {
        "model_type": "minicpm",
        "architectures": ["MiniCPMForCausalLM"],
        "scale_emb": tiny["embedding_multiplier"],
        "scale_depth": tiny["residual_multiplier"] * tiny["num_hidden_layers"] ** 0.5,
        "dim_model_base": int(tiny["hidden_size"] / tiny["logits_scaling"]),
        "rope_scaling": None,
        "tie_word_embeddings": False,
    }
    return config, dict(state)


def as_chatglm(tiny: Json, state: State) -> tuple[Json, dict[str, torch.Tensor]]:
    """ChatGLM 3, of a GLM."""
    config = {
        "model_type": "chatglm",
        "architectures": ["ChatGLMModel"],
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "apply_query_key_layer_scaling": True,
        "apply_residual_connection_post_layernorm": False,
        "attention_softmax_in_fp32": True,
        "eos_token_id": tiny["eos_token_id"],
        "ffn_hidden_size": tiny["intermediate_size"],
        "fp32_residual_connection": False,
        "hidden_size": tiny["hidden_size"],
        "kv_channels": tiny["head_dim"],
        "layernorm_epsilon": tiny["rms_norm_eps"],
        "multi_query_attention": True,
        "multi_query_group_num": tiny["num_key_value_heads"],
        "num_attention_heads": tiny["num_attention_heads"],
        "num_layers": tiny["num_hidden_layers"],
        "original_rope": True,
        "pad_token_id": 0,
        "padded_vocab_size": tiny["vocab_size"],
        "post_layer_norm": True,
        "rmsnorm": True,
        "seq_length": tiny["max_position_embeddings"],
        "tie_word_embeddings": False,
    }
    tensors = {}
    for name, tensor in join_qkv(state, "qkv_proj").items():
        for pattern, own in _CHATGLM:
            name = re.sub(pattern, own, name)
        tensors[name] = tensor
    tensors["transformer.rotary_pos_emb.inv_freq"] = torch.ones(4)
    return config, tensors
