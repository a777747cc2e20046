"""A mixture of experts as a layer's feed-forward: a router chooses some of many for each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from seesay.checkpoint.parts import Source, Weight, plain_weight
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.linear import Linear
from seesay.llm.models.decoder import RowSplit
from seesay.llm.models.norm import NoNorm, Norm
from seesay.llm.models.residual import Joint
from seesay.llm.models.spec import FeedForwardSpec
from seesay.llm.ops import ExpertChoice, Ops

if TYPE_CHECKING:
    from seesay.llm.models.feed_forward import FeedForward


class Experts:
    """The sum of what the chosen experts compute, each times its share (Shazeer et al. 2017), and of what `shared`
    computes for every token."""

    def __init__(
        self, hidden_size: int, spec: FeedForwardSpec, ops: Ops, *, layer: str, shared: FeedForward | None
    ) -> None:
        assert spec.experts is not None
        experts, size = spec.experts, spec.size
        self._routing, self._activation, self._ops = experts.routing, spec.activation, ops
        self._is_exact, self._none = experts.is_router_exact, NoNorm(ops)
        count = experts.routing.num_experts
        self._router = Linear(hidden_size, count, bias=False, is_quantizable=False)
        halves = [Source(module=f"{part}_proj", num_outputs=size) for part in ("gate", "up")]
        self._gate_up = ExpertLinear(hidden_size, count, sources=halves, bias=spec.has_bias)
        whole = Source(module="down_proj", num_outputs=hidden_size)
        self._down = ExpertLinear(size, count, sources=[whole], bias=spec.has_bias)
        self._choice_bias = (
            plain_weight(f"{layer}.mlp.gate.e_score_correction_bias", count, dtype=torch.float32)
            if experts.has_choice_bias
            else None
        )
        self.weights: tuple[Weight, ...] = () if self._choice_bias is None else (self._choice_bias,)
        self.linears: Mapping[str, Linear] = {
            "mlp.gate": self._router,
            "mlp.experts.gate_up_proj": self._gate_up,
            "mlp.experts.down_proj": self._down,
        }
        self._shared, self._shared_gate = shared, None
        if shared is not None:
            self.linears = {**self.linears, **shared.linears}
            if experts.has_shared_gate:
                self._shared_gate = Linear(hidden_size, 1, bias=False, is_quantizable=False)
                self.linears = {**self.linears, "mlp.shared_expert_gate": self._shared_gate}

    def run(
        self, norm: Norm, delta: torch.Tensor | None, residual: torch.Tensor, rows: RowSplit | None
    ) -> torch.Tensor:
        x = norm.add(delta, residual)
        made = self._ops.run_experts(x, self._choose(x), self._gate_up, self._down, self._activation)
        if self._shared is not None:
            made.add_(self._run_shared(self._shared, x, rows))
        return made

    def run_few(self, norm: Norm, x: torch.Tensor, joint: Joint, residual: torch.Tensor) -> None:
        x = norm(x)
        if not joint.is_plain:
            residual.add_(joint.prepare(self.run(self._none, None, x, None)))
            return
        self._ops.run_experts(x, self._choose(x), self._gate_up, self._down, self._activation, residual)
        if self._shared is None:
            return
        if self._shared_gate is None:
            self._shared.run_few(self._none, x, joint, residual)
        else:
            residual.add_(self._run_shared(self._shared, x, None))

    def _run_shared(self, shared: FeedForward, x: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        made = shared.run(self._none, None, x, rows)
        return made if self._shared_gate is None else made.mul_(self._shared_gate(x).sigmoid_())

    def _choose(self, x: torch.Tensor) -> ExpertChoice:
        bias = None if self._choice_bias is None else self._choice_bias.data
        return self._ops.choose_experts(self._compute_logits(x), self._routing, bias)

    def _compute_logits(self, x: torch.Tensor) -> torch.Tensor:
        router = self._router
        if self._is_exact and x.is_cuda and x.dtype != torch.float32:
            weight, *_ = router.tensors
            return torch.mm(x, weight.t(), out_dtype=torch.float32)
        if router.fused is not None and len(x) <= router.max_fused_rows:
            return router.fused(x)
        return router(x)
