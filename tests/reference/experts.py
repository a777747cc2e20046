"""Names of a mixture of experts' tensors: as published, three for each expert, and as Transformers has them in memory,
two for all."""

from __future__ import annotations

import re

import torch
from torch import Tensor


def split_experts(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As published, of the tensors in memory."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith(".experts.gate_up_proj"):
            for number, both in enumerate(tensor):
                for part, half in zip(("gate", "up"), both.chunk(2), strict=True):
                    found[name.replace("gate_up_proj", f"{number}.{part}_proj.weight")] = half
        elif name.endswith(".experts.down_proj"):
            for number, one in enumerate(tensor):
                found[name.replace("down_proj", f"{number}.down_proj.weight")] = one
        else:
            found[name] = tensor
    return found


def join_experts(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As in memory, of the published tensors."""
    found: dict[str, Tensor] = {}
    parts: dict[str, dict[tuple[int, str], Tensor]] = {}
    for name, tensor in state.items():
        if match := re.fullmatch(r"(.*\.experts\.)(\d+)\.(gate|up|down)_proj\.weight", name):
            parts.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
        else:
            found[name] = tensor
    for front, own in parts.items():
        numbers = range(1 + max(number for number, _ in own))
        found[front + "gate_up_proj"] = torch.stack([torch.cat((own[n, "gate"], own[n, "up"])) for n in numbers])
        found[front + "down_proj"] = torch.stack([own[n, "down"] for n in numbers])
    return found
