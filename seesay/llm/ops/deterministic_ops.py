"""The operations in plain torch for the deterministic mode, on the CPU: see `seesay.device.determinism`."""

from __future__ import annotations

from typing import Any

import torch

from seesay.device.determinism import fill_groups
from seesay.device.query import cpu_threads
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops import fixed_attention
from seesay.llm.ops.fixed_attention import Scores
from seesay.llm.ops.interface import Activation, DecodeRows, RowLayout
from seesay.llm.ops.torch_experts import ExpertChoice, choose_experts
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.plans.routing import Routing
from seesay.llm.plans.window import Window


class DeterministicOps(TorchOps):
    """The operations of `TorchOps`, with the same bits for a token whatever tokens are computed beside it."""

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        residual: torch.Tensor | None = None,
        other: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = x if other is None else x.add_(other)
        x = x if residual is None else residual.add_(x)
        if not len(x):
            return super().rms_norm(x, weight, eps)
        with cpu_threads(1):
            return super().rms_norm(fill_groups(x), weight, eps)[: len(x)]

    def act_and_mul(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        if not len(x):
            return super().act_and_mul(x, activation)
        with cpu_threads(1):
            return super().act_and_mul(fill_groups(x), activation)[: len(x)]

    @staticmethod
    def choose_experts(logits: torch.Tensor, routing: Routing, bias: torch.Tensor | None) -> ExpertChoice:
        if not len(logits):
            return choose_experts(logits, routing, bias)
        with cpu_threads(1):
            experts, shares = choose_experts(fill_groups(logits), routing, bias)
        return ExpertChoice(experts[: len(logits)], shares[: len(logits)])

    def rotate_and_write(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: LayerCache,
        slots: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
        faults: torch.Tensor | None = None,
    ) -> None:
        if not len(qkv):
            return
        filled, own_faults = fill_groups(qkv), None if faults is None else fill_groups(faults)
        with cpu_threads(1):  # copies of the last token are written to where it is written
            super().rotate_and_write(
                filled, fill_groups(cos), fill_groups(sin), cache, fill_groups(slots), norms, own_faults
            )
        qkv.copy_(filled[: len(qkv)])
        if faults is not None and own_faults is not None:
            faults.copy_(own_faults[: len(faults)])

    def plan_attention(
        self,
        layout: RowLayout | DecodeRows,
        *,
        windows: frozenset[Window | None],
        device: torch.device,
        dtype: torch.dtype,
    ) -> Any:
        del windows, device, dtype  # masks are made when they are needed
        assert isinstance(layout, RowLayout), "rows that only the device knows are for CUDA graphs"
        return fixed_attention.make_plan(layout)

    def attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        plan: Any,
        *,
        scale: float,
        window: Window | None,
        soft_cap: float | None,
        sinks: torch.Tensor | None = None,
        slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        with cpu_threads(1):
            return fixed_attention.attend(query, cache, plan, Scores(scale, window, soft_cap, sinks, slopes))
