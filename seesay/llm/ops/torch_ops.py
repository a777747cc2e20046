"""The operations in plain torch, complete on the CPU and on CUDA: the oracle of every other implementation.

On the CPU what was gathered for the attention of decode rows is kept for the next step. What is only there to be fast
on the CPU is in float32 alone.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import torch

from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.norm import rms_norm
from seesay.device.linear.row_quantization import QuantizedRows, RowFormat, quantize_rows
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops import torch_experts
from seesay.llm.ops.activations import act_and_mul, square_relu
from seesay.llm.ops.decode_kv_copy import DecodeKVCopy
from seesay.llm.ops.interface import Activation, AnyActivation, DecodeRows, LowRankOps, RowLayout
from seesay.llm.ops.kv_codec import write_tokens
from seesay.llm.ops.latent_rows import write_latent
from seesay.llm.ops.slopes import find_bias
from seesay.llm.ops.torch_attention import (
    AttentionPlan,
    Piece,
    attend_group,
    attend_kept,
    attend_piece,
    end_of_group,
    make_group,
    make_pieces,
)
from seesay.llm.ops.torch_low_rank import TorchLowRank
from seesay.llm.plans.routing import Routing
from seesay.llm.plans.window import Window


class TorchOps:
    """See `Ops` for what each does. One object per decoder: on the CPU it keeps copies of what is in its cache."""

    needs_clean_blocks: ClassVar[bool] = True
    takes_device_rows: ClassVar[bool] = False
    most_tokens_alone: ClassVar[int] = 0
    low_rank: ClassVar[LowRankOps] = TorchLowRank()
    act_and_mul = staticmethod(act_and_mul)
    choose_experts = staticmethod(torch_experts.choose_experts)
    write_latent = staticmethod(write_latent)

    def __init__(self) -> None:
        self._kept = DecodeKVCopy()

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
        return rms_norm(x if residual is None else residual.add_(x), weight, eps)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate the first R of the D components of x [T, H, D] in place by cos and sin [T, 1, R]."""
        dim = cos.shape[-1]
        rotated = x if dim == x.shape[-1] else x[..., :dim]
        torch.addcmul(rotated * cos, rotated.roll(dim // 2, -1), sin, out=rotated)

    def quantize_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, form: RowFormat
    ) -> QuantizedRows:
        return quantize_rows(self.rms_norm(x, weight, eps, residual=residual), form)

    def quantize_activation(self, x: torch.Tensor, activation: Activation, form: RowFormat) -> QuantizedRows:
        return quantize_rows(self.act_and_mul(x, activation), form)

    def mix_experts(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        routing: Routing,
        bias: torch.Tensor | None,
        gate_up: ExpertLinear,
        down: ExpertLinear,
        *,
        activation: AnyActivation,
        norm: tuple[torch.Tensor, float] | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if norm is not None:
            x = self.rms_norm(x, *norm)
        choice = self.choose_experts(logits, routing, bias)
        activate = square_relu if activation == "relu2" else partial(self.act_and_mul, activation=activation)
        made = torch_experts.run_experts(x, choice, gate_up, down, activate)
        return made if add_to is None else add_to.add_(made)

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
        num_kv_heads = cache.layout.num_kv_heads
        num_heads = qkv.shape[1] - 2 * num_kv_heads
        qk = qkv[:, : num_heads + num_kv_heads]
        if norms is not None:
            query_weight, key_weight, eps = norms
            qk[:, :num_heads] = self.rms_norm(qk[:, :num_heads], query_weight, eps)
            qk[:, num_heads:] = self.rms_norm(qk[:, num_heads:], key_weight, eps)
        self.rotate(qk, cos, sin)
        pairs = qkv[:, num_heads:]
        params = write_tokens(cache, slots, pairs.view(qkv.shape[0], 2, num_kv_heads, -1))
        if faults is not None:
            _note_faults(pairs if params is None else params, faults)

    def splice(self, hidden: torch.Tensor, rows: torch.Tensor, embeddings: torch.Tensor) -> None:
        hidden.index_copy_(0, rows, embeddings.to(hidden.dtype))

    def plan_attention(
        self,
        layout: RowLayout | DecodeRows,
        *,
        windows: frozenset[Window | None],
        device: torch.device,
        dtype: torch.dtype,
    ) -> AttentionPlan:
        assert isinstance(layout, RowLayout), "rows that only the device knows are for CUDA graphs"
        groups = []
        context = None
        if device.type == "cpu" and dtype == torch.float32:
            context = self._kept.begin_step(layout, windows)
        start = 0 if context is None else layout.num_decode
        while start < layout.num_decode:
            stop = end_of_group(layout, start)
            groups.append(make_group(layout, start, stop, windows=windows, device=device, dtype=dtype))
            start = stop
        pieces: list[Piece] = []
        for row in range(layout.num_decode, len(layout.kv_lens)):
            pieces.extend(make_pieces(layout, row, device=device))
        return AttentionPlan(groups=tuple(groups), pieces=tuple(pieces), context=context)

    def forget_blocks(self) -> None:
        self._kept.drop()

    def attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        plan: AttentionPlan,
        *,
        scale: float,
        window: Window | None,
        soft_cap: float | None,
        sinks: torch.Tensor | None = None,
        slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        options: dict[str, Any] = {"scale": scale, "soft_cap": soft_cap, "sinks": sinks}
        outputs = []
        if plan.context is not None:
            keys, values = self._kept.read(cache, plan.context)
            bias = plan.context.bias(window, cache.layout.num_kv_heads)
            if slopes is not None:
                places = torch.arange(plan.context.longest)
                leaning = find_bias(slopes, places, plan.context.last_places[:, None, None], scale)
                bias = bias + leaning.view(len(bias), -1, len(places))
            rows = query[: plan.context.num_rows]
            outputs.append(attend_kept(rows, keys, values, bias, **options))
        for group in plan.groups:
            outputs.append(attend_group(query, cache, group, window=window, slopes=slopes, **options))
        for piece in plan.pieces:
            outputs.append(attend_piece(query, cache, piece, window=window, slopes=slopes, **options))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def attend_latent(
        self, query: torch.Tensor, cache: LayerCache, plan: AttentionPlan, *, scale: float
    ) -> torch.Tensor:
        attended = self.attend(query, cache, plan, scale=scale, window=None, soft_cap=None)
        return attended[..., cache.layout.turned_dim :]


def _note_faults(numbers: torch.Tensor, faults: torch.Tensor) -> None:
    """Set faults [T] to NaN where any of numbers [T, ...] is not finite. On the CPU a sum is looked at first."""
    if not numbers.is_cpu or not math.isfinite(numbers.sum().item()):
        faults.masked_fill_(~numbers.isfinite().flatten(1).all(dim=1), math.nan)
