"""A mixture of experts as a layer's feed-forward: a router chooses some of many for each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from seesay.checkpoint.parts import INPUTS, OUTPUTS, Axis, Part, Source, Weight, plain_weight
from seesay.device.backends import has_wide_products
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.linear import Linear
from seesay.llm.models.decoder import RowSplit
from seesay.llm.models.division import Division
from seesay.llm.models.norm import Delta, NoNorm, Norm, RmsNorm
from seesay.llm.models.residual import Joint
from seesay.llm.models.spec import ExpertsSpec, FeedForwardSpec, StackingSpec
from seesay.llm.ops import Ops

if TYPE_CHECKING:
    from seesay.llm.models.feed_forward import FeedForward


class Experts:
    """The sum of what the chosen experts compute, each times its share (Shazeer et al. 2017), and of what `shared`
    computes for every token. is_media: they are those of rows of media alone (see `ExpertsSpec.media_size`)."""

    def __init__(
        self,
        hidden_size: int,
        spec: FeedForwardSpec,
        ops: Ops,
        *,
        layer: str,
        shared: FeedForward | None,
        division: Division,
        is_media: bool = False,
    ) -> None:
        assert spec.experts is not None
        experts = spec.experts
        size, path = _find_place(spec.size, experts, is_media=is_media)
        self._routing, self._activation, self._ops = experts.routing, spec.activation, ops
        self._is_exact, self._none = experts.is_router_exact, NoNorm(ops)
        self._scales_inputs = experts.scales_inputs
        count = experts.routing.num_experts
        self._router = Linear(
            hidden_size,
            count,
            bias=experts.has_bias,
            is_quantizable=False,
            is_transposed=experts.is_router_transposed,
        )
        inner, own = division.expert_inner(size), division.experts(count)
        stacking = experts.stacking
        up = Source(module="up_proj", num_outputs=size, picks=(inner,))
        self._gate_up = ExpertLinear(
            hidden_size,
            count,
            sources=_find_halves(size, inner, stacking) if experts.is_gated else [up],
            experts=own,
            bias=experts.has_bias,
            is_stacked=stacking is not None,
            is_transposed=False if stacking is None else stacking.is_transposed,
        )
        whole = Source(module="down_proj", num_outputs=hidden_size)
        self._down = ExpertLinear(
            size,
            count,
            sources=[whole],
            inputs=inner,
            experts=own,
            bias=experts.has_bias,
            has_own_bias=division.is_first or division.has_whole_experts,
            is_stacked=stacking is not None,
            is_transposed=False if stacking is None else stacking.is_transposed,
        )
        self._choice_bias = None
        if experts.choice_bias_shape:
            name = f"{layer}.mlp.gate.e_score_correction_bias"
            self._choice_bias = _find_choice_bias(name, experts, is_media=is_media)
        self.weights: tuple[Weight, ...] = () if self._choice_bias is None else (self._choice_bias,)
        self.linears: Mapping[str, Linear] = {
            f"{path}.gate": self._router,
            f"{path}.experts.gate_up_proj": self._gate_up,
            f"{path}.experts.down_proj": self._down,
        }
        self._shared, self._shared_gate = shared, None
        if shared is not None:
            self.linears = {**self.linears, **shared.linears}
            if experts.has_shared_gate:
                self._shared_gate = Linear(hidden_size, 1, bias=False, is_quantizable=False)
                self.linears = {**self.linears, "mlp.shared_expert_gate": self._shared_gate}

    def run(self, norm: Norm, delta: Delta, residual: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        x = norm.add(delta, residual)
        if not len(x):  # behind the last layer, a step of a prompt's middle needs nothing
            return x
        made = self._mix(x, self._compute_logits(x))
        if self._shared is not None:
            made.add_(self._run_shared(self._shared, x, rows))
        return made

    def run_few(self, norm: Norm, x: torch.Tensor, joint: Joint, residual: torch.Tensor) -> None:
        if not joint.is_plain:
            residual.add_(joint.prepare(self.run(norm, None, x, None)))
            return
        if self._shared is None and self._fuses_norm(norm, len(x)):
            assert isinstance(norm, RmsNorm)
            self._mix(x, norm.multiply_few(self._router, x), norm=norm.fused, add_to=residual)
            return
        x = norm(x)
        self._mix(x, self._compute_logits(x), add_to=residual)
        if self._shared is not None and self._shared_gate is None:
            self._shared.run_few(self._none, x, joint, residual)
        elif self._shared is not None:
            residual.add_(self._run_shared(self._shared, x, None))

    def _fuses_norm(self, norm: Norm, num_tokens: int) -> bool:
        """Return whether the norm costs less as a part of the products behind it."""
        is_apart = self._is_exact or self._scales_inputs
        return isinstance(norm, RmsNorm) and not is_apart and num_tokens <= self._ops.most_tokens_alone

    def _run_shared(self, shared: FeedForward, x: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        made = shared.run(self._none, None, x, rows)
        return made if self._shared_gate is None else made.mul_(self._shared_gate(x).sigmoid_())

    def _mix(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        *,
        norm: tuple[torch.Tensor, float] | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self._scales_inputs:
            x = x * logits.amax(dim=-1, keepdim=True).float().sigmoid_().to(x.dtype)
        return self._ops.mix_experts(
            x,
            logits,
            self._routing,
            None if self._choice_bias is None else self._choice_bias.data.flatten(),
            self._gate_up,
            self._down,
            activation=self._activation,
            norm=norm,
            add_to=add_to,
        )

    def _compute_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the router's logits [T, experts] of the norm x."""
        is_seen = self._router.is_observed
        if self._is_exact and has_wide_products(x.device) and x.dtype != torch.float32 and not is_seen:
            weight, *_ = self._router.tensors
            logits = torch.mm(x, weight.t(), out_dtype=torch.float32)
            if self._router.adaptation is not None:
                added = x.new_zeros(logits.shape)
                self._router.adaptation.add(x, added)
                logits.add_(added)
            return logits
        return self._none.multiply_few(self._router, x)


class SplitExperts:
    """`text` experts, and those that rows of media go through in their place."""

    def __init__(self, text: Experts, media: Experts, ops: Ops) -> None:
        self._text, self._media, self._none = text, media, NoNorm(ops)
        self.weights: tuple[Weight, ...] = (*text.weights, *media.weights)
        self.linears: Mapping[str, Linear] = {**media.linears, **text.linears}

    def run(self, norm: Norm, delta: Delta, residual: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        if rows is None:
            return self._text.run(norm, delta, residual, None)
        x = norm.add(delta, residual)
        made = torch.empty_like(x)
        for experts, chosen in ((self._text, rows.text), (self._media, rows.media)):
            if len(chosen):
                made.index_copy_(0, chosen, experts.run(self._none, None, x.index_select(0, chosen), None))
        return made

    def run_few(self, norm: Norm, x: torch.Tensor, joint: Joint, residual: torch.Tensor) -> None:
        self._text.run_few(norm, x, joint, residual)


def _find_place(size: int, experts: ExpertsSpec, *, is_media: bool) -> tuple[int, str]:
    """Return the inner size of experts, which is `size` for those of text, and their path in the layer."""
    return (experts.media_size, "media.mlp") if is_media else (size, "mlp")


def _find_choice_bias(name: str, experts: ExpertsSpec, *, is_media: bool) -> Weight:
    """Return the bias by which experts are chosen: the whole tensor, or its row of these experts."""
    if not experts.media_size:
        return plain_weight(name, *experts.choice_bias_shape, dtype=torch.float32)
    rows, count = experts.choice_bias_shape
    axes = Axis(dim=OUTPUTS, size=rows, picks=(range(is_media, is_media + 1),)), Axis(dim=INPUTS, size=count)
    return Weight(parts=(Part(tensor=name, axes=axes),), dtype=torch.float32)


def _find_halves(size: int, inner: range, stacking: StackingSpec | None) -> list[Source]:
    """Return the stored outputs that are the components `inner` of an expert's gate and of its up."""
    if stacking is None:
        return [Source(module=f"{part}_proj", num_outputs=size, picks=(inner,)) for part in ("gate", "up")]
    step, starts = (2, (0, 1)) if stacking.alternates else (1, (0, size))
    return [
        Source(
            module="gate_up_proj",
            num_outputs=2 * size,
            picks=(range(start + step * inner.start, start + step * (inner.stop - 1) + 1, step),),
        )
        for start in starts
    ]
