"""Checkpoints with experts in the other layout: one by one, or in tensors of all of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from quantized_folders import edit_tensors

Tensors = dict[str, torch.Tensor]
_STACK = re.compile(r"(.*\.experts)\.(gate_up|down)_proj")
_ONE = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_HALVES = {"gate": "w1", "up": "w3", "down": "w2"}


def copy_edited(source: Path, folder: Path, edit: Callable[[Tensors], None]) -> Path:
    shutil.copytree(source, folder)
    edit_tensors(folder, edit)
    return folder


def unstack(tensors: Tensors) -> None:
    """Store experts [experts, outputs, inputs] one by one."""
    for name in list(tensors):
        if match := _STACK.fullmatch(name):
            for expert, weight in enumerate(tensors.pop(name)):
                halves = [weight] if match[2] == "down" else weight.chunk(2)
                for half, piece in zip(["down"] if match[2] == "down" else ["gate", "up"], halves, strict=True):
                    tensors[f"{match[1]}.{expert}.{half}_proj.weight"] = piece.contiguous()


def stack(tensors: Tensors) -> None:
    """Store experts in two tensors for all of them, [experts, outputs, inputs]."""
    layers: dict[str, dict[int, Tensors]] = {}
    for name in list(tensors):
        if match := _ONE.fullmatch(name):
            layers.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = tensors.pop(name)
    for layer, experts in layers.items():
        ordered = [experts[number] for number in range(len(experts))]
        gate, up, down = (
            torch.stack([_pick(expert, f"{half}_proj", _HALVES[half]) for expert in ordered])
            for half in ("gate", "up", "down")
        )
        tensors |= {f"{layer}.gate_up_proj": torch.cat((gate, up), dim=1), f"{layer}.down_proj": down}


def _pick(tensors: Tensors, *names: str) -> torch.Tensor:
    [found] = [tensors[name] for name in names if name in tensors]
    return found
