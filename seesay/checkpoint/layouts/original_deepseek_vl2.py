"""DeepSeek-VL2 as its authors publish it: a SigLIP under timm's names, and a mixture of experts that is a DeepSeek-V2,
a DeepSeek-V3, or one with plain attention. Read as a LLaVA in Transformers' layout, which is a tower and a decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import check_fields, read_count, read_number, read_part
from seesay.errors import CheckpointError

PLAIN_ATTENTION = "deepseek_ocr2_text"
"""The `model_type` of Transformers' mixture of experts of DeepSeek's kind with the attention of a Llama."""
_CODE = ("architectures", "auto_map", "lm_head", "model_type", "rm_head", "torch_dtype", "use_mla")
_MOST_LAYERS = 1 << 10
_MOST_EXPERTS = 1 << 14
_EXPERTS = {"ep_size": 1, "moe_layer_freq": 1}
_SIGMOID = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_SOFTMAX = {"scoring_func": "softmax", "norm_topk_prob": False}
_METHODS = ("greedy", "group_limited_greedy")
TEXT_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "moe_intermediate_size": 1407,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "first_k_dense_replace": 0,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "n_group": None,
    "topk_group": None,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}
"""Defaults of the published decoder class."""
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "qk_nope_head_dim", "norm_topk_prob")
_VISION = {"image_size": 384, "patch_size": 16, "width": 1024, "layers": 24, "heads": 16, "mlp_ratio": 4}
_PROJECTOR = {
    "projector_type": "downsample_mlp_gelu",
    "depth": 2,
    "mlp_ratio": 1,
    "downsample_ratio": 2,
    "token_pooling": False,
}
_ARCHITECTURE = "DeepseekVLV2ForCausalLM"
_ORDERS = ("head", "tail")


def read_deepseek_v3(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of Transformers' DeepSeek-V3. Raises `CheckpointError` naming a field that is not
    supported."""
    check_fields(config, {**_EXPERTS, **_SIGMOID})
    _check_experts(config)
    return {**{name: value for name, value in config.items() if name not in _CODE}, "model_type": "deepseek_v3"}


def read_deepseek_vl2(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of tower and decoder. Raises `CheckpointError` naming a field that is not supported."""
    names = config.get("architectures") or [_ARCHITECTURE]  # published without
    if names != [_ARCHITECTURE]:
        raise CheckpointError(f"{str(names)[:80]} is another model with this model_type than {_ARCHITECTURE}")
    vision = {**_VISION, **read_part(config, "vision_config")}
    check_fields(vision, {"class_token": False, "ignore_head": True, "num_classes": 0}, where="vision_config.")
    check_fields(read_part(config, "projector_config"), _PROJECTOR, where="projector_config.")
    check_fields(config, {"tile_tag": "2D"})
    order = config.get("global_view_pos", "head")
    if order not in _ORDERS:
        raise CheckpointError(f"global_view_pos must be one of {', '.join(_ORDERS)}, got {str(order)[:40]!r}")
    text = read_language(read_part(config, "language_config"))
    width = read_count(vision, "width", most=1 << 20)
    return {
        "architectures": names,
        "model_type": "llava",
        "text_config": text,
        "eos_token_id": text["eos_token_id"],
        "tie_word_embeddings": False,
        "global_view_pos": order,
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": width,
            "intermediate_size": int(width * read_number(vision, "mlp_ratio")),
            "num_hidden_layers": read_count(vision, "layers", most=_MOST_LAYERS),
            "num_attention_heads": read_count(vision, "heads", most=1 << 12),
            "image_size": read_count(vision, "image_size", most=1 << 14),
            "patch_size": read_count(vision, "patch_size", most=1 << 12),
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
    }


def read_language(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of the decoder, which is the `language_config`. Raises `CheckpointError` naming a field
    that is not supported."""
    return _read_text({**TEXT_DEFAULTS, **config})


def _check_experts(config: Mapping[str, object]) -> None:
    """Raise `CheckpointError` naming a number of experts that is missing: the published code has other defaults than
    Transformers."""
    for name in ("n_routed_experts", "num_experts_per_tok", "n_shared_experts"):
        read_count(config, name, most=_MOST_EXPERTS)


def _read_text(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of the decoder, by its attention and by how it chooses experts."""
    has_latent = config.get("use_mla") in (None, True)
    if config.get("scoring_func") == "sigmoid" and has_latent:
        return read_deepseek_v3(config)
    check_fields(config, {**_EXPERTS, **_SOFTMAX})
    _check_experts(config)
    if (method := config.get("topk_method")) not in _METHODS:
        raise CheckpointError(f"topk_method must be one of {', '.join(_METHODS)}, got {str(method)[:40]!r}")
    own = {name: value for name, value in config.items() if name not in _CODE}
    return {**own, "model_type": "deepseek_v2"} if has_latent else _read_plain_attention(own)


def _read_plain_attention(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a decoder without latent attention, with the kind of each layer's feed-forward."""
    num_layers = read_count(config, "num_hidden_layers", most=_MOST_LAYERS)
    num_dense = config["first_k_dense_replace"]
    if type(num_dense) is not int or not 0 <= num_dense <= num_layers:
        raise CheckpointError(
            f"first_k_dense_replace must be an integer from 0 to {num_layers}, got {str(num_dense)[:40]!r}"
        )
    return {
        **{name: value for name, value in config.items() if name not in (*_LATENT, "first_k_dense_replace")},
        "model_type": PLAIN_ATTENTION,
        "mlp_layer_types": ["dense"] * num_dense + ["sparse"] * (num_layers - num_dense),
    }
