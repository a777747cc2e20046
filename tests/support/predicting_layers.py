"""Checkpoints with a layer that predicts further tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def add_layer(source: Path, target: Path, *, shares: bool = False) -> Path:
    """Copy a checkpoint, with a random layer behind its last one, as published; with `shares`, without a table and a
    head of its own."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    number = config["num_hidden_layers"]
    (target / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    tensors = load_file(target / "model.safetensors")
    torch.manual_seed(11)
    last, new = f"model.layers.{number - 1}.", f"model.layers.{number}."
    layer = {name.replace(last, new): 0.05 * torch.randn_like(t) for name, t in tensors.items() if last in name}
    layer |= {name: torch.ones_like(t) for name, t in layer.items() if "norm" in name}
    size = config["hidden_size"]
    layer |= {f"{new}{name}.weight": torch.ones(size) for name in ("enorm", "hnorm", "shared_head.norm")}
    layer[f"{new}eh_proj.weight"] = 0.05 * torch.randn(size, 2 * size)
    if not shares:
        layer[f"{new}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        layer[f"{new}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors | layer, target / "model.safetensors")
    return target
