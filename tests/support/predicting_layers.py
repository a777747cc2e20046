"""Checkpoints with a layer that predicts further tokens, as published."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

APART = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe", "qwen3_next")
"""Checkpoints whose layer is stored apart from the others."""

Tensors = dict[str, torch.Tensor]


def add_layer(source: Path, target: Path, *, shares: bool = False, is_apart: bool = False) -> Path:
    """Copy a checkpoint, with a random layer: behind its last one, or apart from the others; with `shares`, without a
    table and a head of its own."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    text = config.get("text_config", config)
    text["mtp_num_hidden_layers" if is_apart else "num_nextn_predict_layers"] = 1
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(target / "model.safetensors")
    torch.manual_seed(11)
    add = _make_apart if is_apart else _make_behind
    layer = add(tensors, text["num_hidden_layers"], text["hidden_size"], shares=shares)
    save_file(tensors | {name: t.contiguous() for name, t in layer.items()}, target / "model.safetensors")
    return target


def add_sure_layer(source: Path, target: Path, *, num_known: int, is_apart: bool = False) -> Path:
    """Copy a checkpoint whose answers then go through `num_known` tokens again and again, whatever the prompt, with a
    layer that foresees each of them. An axis of the hidden states stands for each token; one layer turns it into that
    of the next one, and so does the new layer, whose input is half of the embedding and half of the state: of another
    place or step, it would be between two tokens."""
    add_layer(source, target, shares=True, is_apart=is_apart)
    tensors = load_file(target / "model.safetensors")
    vocab, size = tensors["lm_head.weight"].shape
    known = torch.arange(0, vocab, vocab // num_known)[:num_known]
    axes = torch.eye(size)[:num_known]
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            tensor.zero_()  # no layer changes anything
        elif "norm" in name:
            tensor.fill_(0.0 if is_apart else 1.0)
        elif name.endswith("embed_tokens.weight"):
            tensor.copy_(axes[torch.bucketize(torch.arange(vocab), known, right=True) - 1])
    tensors["lm_head.weight"].zero_()[known] = 4 * axes
    _move(tensors, "model.layers.0.mlp", axes)
    join = next(name for name in tensors if name.endswith(("eh_proj.weight", "mtp.fc.weight")))
    layer = "mtp.layers.0.mlp" if is_apart else join.replace("eh_proj.weight", "mlp")
    experts = f"{layer}.shared_experts"
    _move(tensors, experts if f"{experts}.down_proj.weight" in tensors else layer, axes)
    tensors[join] = torch.cat([torch.eye(size)] * 2, dim=1) / (2 * size**0.5)  # norms make an axis so long
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    return target


def _move(tensors: Tensors, name: str, axes: torch.Tensor) -> None:
    """Let a feed-forward turn each axis into the one after it."""
    count, size = axes.shape
    factor = float(F.silu(torch.tensor(size**0.5)) * size**0.5)
    for part in ("gate", "up"):
        tensors[f"{name}.{part}_proj.weight"].zero_()[:count] = axes
    tensors[f"{name}.down_proj.weight"][:, :count] = (axes.roll(-1, 0) - axes).T / factor


def _make_behind(tensors: Tensors, number: int, size: int, *, shares: bool) -> Tensors:
    """Return the tensors of a layer as GLM-4.5 and DeepSeek-V3 have it."""
    found = (re.fullmatch(rf"((?:.*\.)?layers\.){number - 1}\.input_layernorm\.weight", name) for name in tensors)
    prefix = next(match[1] for match in found if match and "visual" not in match[1])
    last, new = f"{prefix}{number - 1}.", f"{prefix}{number}."
    layer = {name.replace(last, new): 0.05 * torch.randn_like(t) for name, t in tensors.items() if last in name}
    layer |= {name: torch.ones_like(t) for name, t in layer.items() if "norm" in name}
    layer |= {f"{new}{name}.weight": torch.ones(size) for name in ("enorm", "hnorm", "shared_head.norm")}
    layer[f"{new}eh_proj.weight"] = 0.05 * torch.randn(size, 2 * size)
    if not shares:
        table = next(name for name in tensors if name.endswith("embed_tokens.weight"))
        layer[f"{new}embed_tokens.weight"] = tensors[table].clone()
        layer[f"{new}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    return layer


def _make_apart(tensors: Tensors, number: int, size: int, *, shares: bool) -> Tensors:
    """Return the tensors of a layer as Qwen3.5 has it: one of attention. Norms are stored less 1."""
    del number
    attention = next(name for name in sorted(tensors) if name.endswith("self_attn.q_proj.weight"))
    like, new = attention.removesuffix("self_attn.q_proj.weight"), "mtp.layers.0."
    layer = {name.replace(like, new): 0.05 * torch.randn_like(t) for name, t in tensors.items() if like in name}
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    layer |= {f"mtp.{name}.weight": 0.1 * torch.randn(size) for name in norms}
    layer["mtp.fc.weight"] = 0.05 * torch.randn(size, 2 * size)
    if not shares:
        table = next(name for name in tensors if name.endswith("embed_tokens.weight"))
        layer["mtp.embed_tokens.weight"] = tensors[table].clone()
    return layer
