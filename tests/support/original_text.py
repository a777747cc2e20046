"""Text models in the layouts of their authors, whose code lies beside the weights: made of models that Transformers has
with the same layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from published_originals import list_published, read_published, take_values

Json = dict[str, Any]
State = Mapping[str, torch.Tensor]

QWEN_NAMES = (
    (r"^model\.embed_tokens", "transformer.wte"),
    (r"^model\.layers", "transformer.h"),
    (r"^model\.norm", "transformer.ln_f"),
    (r"input_layernorm", "ln_1"),
    (r"post_attention_layernorm", "ln_2"),
    (r"self_attn\.o_proj", "attn.c_proj"),
    (r"self_attn\.c_attn", "attn.c_attn"),
    (r"mlp\.up_proj", "mlp.w1"),
    (r"mlp\.gate_proj", "mlp.w2"),
    (r"mlp\.down_proj", "mlp.c_proj"),
)
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
CHATGLM_NAMES = (
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


def rename(state: State, patterns: Iterable[tuple[str, str]]) -> dict[str, torch.Tensor]:
    """Return the tensors with all patterns in their names replaced, one after another."""
    found = {}
    for name, tensor in state.items():
        for pattern, own in patterns:
            name = re.sub(pattern, own, name)
        found[name] = tensor
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


def as_baichuan2_13b(tiny: Json, state: State) -> tuple[Json, dict[str, torch.Tensor]]:
    """Baichuan 2 of 13B, of a Llama whose positions do not count."""
    config, tensors = as_baichuan2(tiny, state)
    del config["max_position_embeddings"], config["z_loss_weight"]
    return config, tensors


def as_mpt(tiny: Json, state: State) -> tuple[Json, dict[str, torch.Tensor]]:
    """MPT with the fields of its published config.json, and the tensors that its published code has."""
    fields = read_published("mpt_chat")
    assert set(state) == set(list_published("mpt_chat"))
    attention = take_values(fields["attn_config"], tiny["attn_config"])
    return {**take_values(fields, tiny, ("architectures", "auto_map", "attn_config")), "attn_config": attention}, dict(
        state
    )


def as_deepseek(tiny: Json, state: State) -> tuple[Json, dict[str, torch.Tensor]]:
    """DeepSeek-MoE, of a Qwen2-MoE whose gates of what all tokens go through are always a half: its weights are halved
    in turn."""
    kept = (*SIZES, "max_position_embeddings", "num_key_value_heads", "rms_norm_eps", "hidden_act", "eos_token_id")
    config = {name: tiny[name] for name in kept}
    config |= {
        "model_type": "deepseek",
        "architectures": ["DeepseekForCausalLM"],
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": tiny["moe_intermediate_size"],
        "moe_layer_freq": 1,
        "n_routed_experts": tiny["num_experts"],
        "n_shared_experts": tiny["shared_expert_intermediate_size"] // tiny["moe_intermediate_size"],
        "norm_topk_prob": False,
        "num_experts_per_tok": tiny["num_experts_per_tok"],
        "pretraining_tp": 1,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "scoring_func": "softmax",
        "seq_aux": True,
        "tie_word_embeddings": False,
    }
    renamed = {name.replace(".shared_expert.", ".shared_experts."): tensor for name, tensor in state.items()}
    return config, {
        name: 0.5 * tensor if name.endswith("shared_experts.down_proj.weight") else tensor
        for name, tensor in renamed.items()
        if "shared_expert_gate" not in name
    }


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
    tensors = rename(join_qkv(state, "qkv_proj"), CHATGLM_NAMES)
    tensors["transformer.rotary_pos_emb.inv_freq"] = torch.ones(4)
    return config, tensors


def publish_qwen(tiny: Json, **own: Any) -> Json:
    """The configuration of the first Qwen with the sizes of a Qwen2."""
    kept = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size")
    return {
        **{name: tiny[name] for name in kept},
        "architectures": ["QWenLMHeadModel"],
        "attn_dropout_prob": 0.0,
        "bf16": False,
        "emb_dropout_prob": 0.0,
        "fp16": False,
        "fp32": True,
        "initializer_range": 0.02,
        "intermediate_size": 2 * tiny["intermediate_size"],
        "kv_channels": tiny["hidden_size"] // tiny["num_attention_heads"],
        "layer_norm_epsilon": tiny["rms_norm_eps"],
        "model_type": "qwen",
        "no_bias": True,
        "onnx_safe": None,
        "rotary_emb_base": 10000,
        "rotary_pct": 1.0,
        "scale_attn_weights": True,
        "seq_length": tiny["max_position_embeddings"],
        "tie_word_embeddings": False,
        "tokenizer_class": "QWenTokenizer",
        "use_cache": True,
        "use_dynamic_ntk": True,
        "use_flash_attn": "auto",
        "use_logn_attn": True,
        **own,
    }


def name_as_qwen(state: State) -> dict[str, torch.Tensor]:
    """Return the tensors of a Qwen2 under the names of the first Qwen."""
    return rename(join_qkv(state, "c_attn"), QWEN_NAMES)


def as_qwen(tiny: Json, state: State) -> tuple[Json, dict[str, torch.Tensor]]:
    """The first Qwen, of a Qwen2."""
    return publish_qwen(tiny), name_as_qwen(state)
