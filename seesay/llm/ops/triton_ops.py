"""The operations in Triton, for CUDA (and for Triton's interpreter, in which the tests run them on the CPU).

Nothing here waits for the GPU or reads from it: grids come from the layout's host arrays.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.row_quantization import QuantizedRows, RowFormat
from seesay.kernels import quantize, rotary, token_kernels
from seesay.kernels.attention.latent_rows import write_rows
from seesay.kernels.experts.expert_tilings import MAX_ALONE
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops import triton_attention, triton_experts, triton_latent
from seesay.llm.ops.interface import Activation, AnyActivation, DecodeRows, LowRankOps, RowLayout
from seesay.llm.ops.triton_attention import AttentionPlan
from seesay.llm.ops.triton_low_rank import TritonLowRank
from seesay.llm.plans.routing import Routing
from seesay.llm.plans.window import Window


class TritonOps:
    """See `Ops` for what each does."""

    low_rank: ClassVar[LowRankOps] = TritonLowRank()
    needs_clean_blocks: ClassVar[bool] = False
    takes_device_rows: ClassVar[bool] = True
    most_tokens_alone: ClassVar[int] = MAX_ALONE

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        residual: torch.Tensor | None = None,
        other: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if residual is None:
            assert other is None
            return token_kernels.norm(x, None, weight, eps).view_as(x)
        assert x.dim() == residual.dim() == 2 and x.stride(1) == residual.stride(1) == 1
        return token_kernels.norm(x, residual, weight, eps, other=other)

    def act_and_mul(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        return token_kernels.act_and_mul(x, activation)

    def quantize_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, form: RowFormat
    ) -> QuantizedRows:
        found = quantize.quantize_norm(
            x, residual, weight, eps, dtype=form.dtype, largest=form.largest, group_size=form.group_size
        )
        return QuantizedRows(*found)

    def quantize_activation(self, x: torch.Tensor, activation: Activation, form: RowFormat) -> QuantizedRows:
        found = quantize.quantize_activation(
            x, activation, dtype=form.dtype, largest=form.largest, group_size=form.group_size
        )
        return QuantizedRows(*found)

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
        return triton_experts.mix_experts(x, logits, routing, bias, gate_up, down, activation, norm, add_to)

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
        rotary.rotate_and_write(
            qkv,
            cos,
            sin,
            cache.data,
            slots,
            norms,
            faults,
            num_kv_heads=cache.layout.num_kv_heads,
            format=triton_attention.describe_format(cache.layout),
        )

    def splice(self, hidden: torch.Tensor, rows: torch.Tensor, embeddings: torch.Tensor) -> None:
        token_kernels.scatter(hidden, rows, embeddings)

    def plan_attention(
        self,
        layout: RowLayout | DecodeRows,
        *,
        windows: frozenset[Window | None],
        device: torch.device,
        dtype: torch.dtype,
    ) -> AttentionPlan:
        del windows, dtype  # kernels mask for themselves
        return triton_attention.make_plan(layout, device)

    def forget_blocks(self) -> None:
        """Nothing is copied."""

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
        return triton_attention.attend(
            query, cache, plan, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks, slopes=slopes
        )

    def write_latent(
        self,
        rows: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm: tuple[torch.Tensor, float],
        cache: LayerCache,
        slots: torch.Tensor,
        faults: torch.Tensor,
    ) -> None:
        format = triton_attention.describe_format(cache.layout)
        write_rows(rows, cos, sin, norm, cache.data, slots, faults, format=format)

    def attend_latent(
        self, query: torch.Tensor, cache: LayerCache, plan: AttentionPlan, *, scale: float
    ) -> torch.Tensor:
        return triton_latent.attend(query, cache, plan, scale=scale)
