"""Muon for the matrices inside the network, Adam for all else, one learning-rate schedule and an average of weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

MUON_RATE = 0.01
ADAM_RATE = 1.5e-3
MOMENTUM = 0.95


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest orthogonal matrices, roughly: [B, m, n] with singular values near 1.

    Newton-Schulz iteration with the quintic coefficients of K. Jordan et al., "Muon" (2024).
    """
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon:
    """Momentum whose update is orthogonalized; matrices of one shape are handled together."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._groups: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        self._parameters: dict[tuple[int, int], list[tuple[nn.Parameter, int]]] = defaultdict(list)
        for name, parameter in parameters.items():
            parts = 3 if name.endswith("qkv.weight") else 1
            rows, columns = parameter.shape[0] // parts, parameter.shape[1]
            self._parameters[rows, columns].append((parameter, parts))
        self._momenta = {
            shape: torch.zeros(sum(parts for _, parts in members), *shape, device=members[0][0].device)
            for shape, members in self._parameters.items()
        }

    @property
    def momenta(self) -> list[Tensor]:
        """The momenta of all groups, in an order that follows from the parameters."""
        return list(self._momenta.values())

    @torch.no_grad()
    def step(self, rate: float, momentum: float) -> None:
        for shape, members in self._parameters.items():
            grads = torch.cat([_grad(parameter).view(parts, *shape) for parameter, parts in members])
            state = self._momenta[shape]
            state.lerp_(grads, 1 - momentum)
            update = orthogonalize(grads.lerp_(state, momentum)).float()
            update *= -rate * max(1.0, shape[0] / shape[1]) ** 0.5
            pieces = torch.split(update, [parts for _, parts in members])
            torch._foreach_add_(
                [parameter for parameter, _ in members],
                [piece.reshape(parameter.shape) for piece, (parameter, _) in zip(pieces, members, strict=True)],
            )


def _grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise ValueError("a parameter took no part in the loss")
    return parameter.grad


class Optimizer:
    """Steps all parameters of a model; `rate` (0 to 1) scales every learning rate."""

    def __init__(self, model: nn.Module) -> None:
        matrices, others = {}, []
        for name, parameter in model.named_parameters():
            inner = ".blocks." in name or ".layers." in name or ".merger.mlp." in name
            if inner and parameter.ndim == 2:
                matrices[name] = parameter
            else:
                others.append(parameter)
        self._muon = Muon(matrices)
        fused = others[0].is_cuda
        self._adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)

    def step(self, rate: float, *, warmup: float = 1.0) -> None:
        """`warmup` (0 to 1) raises Muon's momentum from 0.85."""
        self._muon.step(MUON_RATE * rate, 0.85 + (MOMENTUM - 0.85) * warmup)
        for group in self._adam.param_groups:
            group["lr"] = ADAM_RATE * rate
        self._adam.step()

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self._muon.momenta, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for momentum, saved in zip(self._muon.momenta, state["muon"], strict=True):
            momentum.copy_(saved)
        self._adam.load_state_dict(state["adam"])


def learning_rate(step: int, done: float, *, warmup_steps: int = 150, decay_share: float = 0.5) -> float:
    """Warm up, hold, then fall linearly to almost nothing over the last `decay_share`; `done` is the share so far."""
    warm = min(1.0, (step + 1) / warmup_steps)
    return min(warm, max(0.01, (1 - done) / decay_share), 1.0)


class Average:
    """An exponential average of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float = 0.998) -> None:
        self._decay = decay
        self._parameters = list(model.parameters())
        self._averages = [parameter.detach().clone() for parameter in self._parameters]

    @property
    def values(self) -> list[Tensor]:
        return self._averages

    def load(self, values: Sequence[Tensor]) -> None:
        for average, value in zip(self._averages, values, strict=True):
            average.copy_(value)

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._averages, [p.detach() for p in self._parameters], 1 - self._decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the parameters with their averages; a second call exchanges them back."""
        for parameter, average in zip(self._parameters, self._averages, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)
