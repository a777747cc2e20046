"""Folders of EAGLE-3 heads with random weights, as they are published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


def describe_head(model: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the configuration of a head for a model with this one."""
    text = model.get("text_config", model)
    rotary = dict(text.get("rope_parameters") or {})
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    scaling = {"type": "mrope", "mrope_section": rotary["mrope_section"]} if "mrope_section" in rotary else None
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": text["hidden_size"],
        "intermediate_size": text["intermediate_size"],
        "num_attention_heads": text["num_attention_heads"],
        "num_key_value_heads": text["num_key_value_heads"],
        "num_hidden_layers": 1,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": rotary.get("rope_theta", 10000.0),
        "rope_scaling": scaling,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": str(text.get("dtype") or model.get("dtype") or "float32"),
        "vocab_size": text["vocab_size"],
        "draft_vocab_size": text["vocab_size"] // 2,
        **changes,
    }


def make_tensors(
    config: Mapping[str, Any], *, seed: int = 5, num_states: int = 3, dtype: torch.dtype = torch.float32
) -> Tensors:
    """Return random tensors of a head, by their published names."""
    generator = torch.Generator().manual_seed(seed)
    size, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    known, dim = config["draft_vocab_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim

    def draw(*shape: int) -> torch.Tensor:
        drawn: torch.Tensor = torch.randn(*shape, generator=generator).div_(shape[-1] ** 0.5)
        return drawn.to(dtype)

    layer = {
        "self_attn.q_proj": draw(heads, 2 * size),
        "self_attn.k_proj": draw(kv_heads, 2 * size),
        "self_attn.v_proj": draw(kv_heads, 2 * size),
        "self_attn.o_proj": draw(size, heads),
        "mlp.gate_proj": draw(inner, size),
        "mlp.up_proj": draw(inner, size),
        "mlp.down_proj": draw(size, inner),
        "hidden_norm": 1 + 0.1 * draw(size),
        "input_layernorm": 1 + 0.1 * draw(size),
        "post_attention_layernorm": 1 + 0.1 * draw(size),
    }
    tensors = {f"midlayer.{name}.weight": tensor for name, tensor in layer.items()}
    tensors |= {
        "fc.weight": draw(size, num_states * config.get("target_hidden_size", size)),
        "norm.weight": 1 + 0.1 * draw(size),
        "lm_head.weight": draw(known, size),
    }
    known_ids = torch.randperm(vocab, generator=generator)[:known].sort().values
    tensors["d2t"] = known_ids - torch.arange(known)
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, known_ids, True)
    return tensors


def write_head(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """Write a head; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def make_head(folder: Path, model: Path, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Write a random head for the model in a folder."""
    config = describe_head(json.loads((model / "config.json").read_text()), **changes)
    return write_head(folder, config, make_tensors(config, dtype=dtype))
