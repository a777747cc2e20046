"""A mixture of experts for all tokens of a step: which experts each takes, and the sum of what these compute.

A few tokens are computed assignment by assignment, so that only the weights of chosen experts are read, by as many
programs as keep the memory busy. For more, assignments are sorted by expert, and each expert's weights are multiplied
with all of its tokens at once. Nothing depends on the host: grids are as large as the number of tokens demands, and
programs without work end at once. Sums are in float32; what experts compute is rounded as separate layers would.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from seesay.kernels.experts.expert_kernels import grouped_kernel, one_row_down_kernel, one_row_gate_kernel
from seesay.kernels.experts.expert_routing_kernels import choose_kernel, combine_kernel, sort_kernel
from seesay.kernels.experts.expert_tilings import MAX_ALONE, GroupedTiling, RowTiling, tile_grouped, tile_row
from seesay.kernels.gpu import has_dependent_launch, has_large_shared_memory, nvidia_options
from seesay.kernels.sizes import power_of_2_from
from seesay.kernels.token_kernels import norm as rms_norm

_MOST_SORTED_AT_ONCE = 2048
_COMBINED_AT_ONCE = 1024


class ExpertMatrix(NamedTuple):
    """The weights [experts · outputs, inputs] of a linear layer that each expert has, with bias [experts · outputs].

    scale: for weights in FP8 or int8, float32 [experts · outputs], or [experts · outputs, groups of `group_size`
    inputs].
    """

    numbers: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    group_size: int | None = None

    def operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return x, the weights, bias and scale; x in place of a tensor that is not there."""
        return x, self.numbers, x if self.bias is None else self.bias, x if self.scale is None else self.scale

    @property
    def scale_strides(self) -> tuple[int, int]:
        if self.scale is None:
            return 0, 0
        return self.scale.stride(0), 0 if self.group_size is None else self.scale.stride(1)

    @property
    def options(self) -> dict[str, Any]:
        return {"GROUP": self.group_size, "HAS_BIAS": self.bias is not None, "HAS_SCALE": self.scale is not None}


class Choosing(NamedTuple):
    """How experts are chosen: see `seesay.llm.plans.routing.Routing`. groups: how many there are, and are kept. bias:
    float32 [experts]."""

    num_chosen: int
    is_sigmoid: bool = False
    is_normalized: bool = False
    least_sum: float = 1e-20
    scale: float = 1.0
    groups: tuple[int, int] = (1, 1)
    sums_two: bool = False
    jitter: float | None = None
    bias: torch.Tensor | None = None

    def options(self, num_experts: int) -> dict[str, Any]:
        assert num_experts % self.groups[0] == 0
        return {
            "NUM": num_experts,
            "PADDED": power_of_2_from(num_experts),
            "CHOSEN": self.num_chosen,
            "IS_SIGMOID": self.is_sigmoid,
            "NORMALIZES": self.is_normalized,
            "GROUPS": self.groups[0],
            "KEPT": self.groups[1],
            "SUMS_TWO": self.sums_two,
            "TAKES_TURNS": self.jitter is not None,
        }


class Choice(NamedTuple):
    """The experts of each token, int32 [tokens, chosen], and their shares, float32. is_partial: there may be experts
    that are not here, -1, with shares of 0."""

    experts: torch.Tensor
    shares: torch.Tensor
    is_partial: bool = False

    @classmethod
    def empty(cls, num_tokens: int, num_chosen: int, device: torch.device, *, is_partial: bool = False) -> Choice:
        experts = torch.empty(num_tokens, num_chosen, dtype=torch.int32, device=device)
        shares = torch.empty(num_tokens, num_chosen, dtype=torch.float32, device=device)
        return cls(experts, shares, is_partial)


def choose(logits: torch.Tensor, choosing: Choosing, own: range | None = None) -> Choice:
    """Return the choice of each token by its logits [tokens, experts], with the numbers of experts among `own`; None
    for all."""
    num_tokens, num_experts = logits.shape
    own = own or range(num_experts)
    assert logits.stride(1) == 1
    is_partial = len(own) < num_experts
    choice = Choice.empty(num_tokens, choosing.num_chosen, logits.device, is_partial=is_partial)
    is_dependent = has_dependent_launch(logits.get_device())
    choose_kernel[(num_tokens,)](
        logits,
        logits if choosing.bias is None else choosing.bias,
        choice.experts,
        choice.shares,
        logits.stride(0),
        choosing.scale,
        choosing.least_sum,
        2 * (choosing.jitter or 0.0),
        SLOTS=power_of_2_from(choosing.num_chosen),
        FIRST=own.start,
        OWN=len(own),
        HAS_BIAS=choosing.bias is not None,
        IS_DEPENDENT=is_dependent,
        num_warps=1,
        **nvidia_options(launch_pdl=is_dependent),
        **choosing.options(num_experts),
    )
    return choice


def mix(
    x: torch.Tensor,
    logits: torch.Tensor,
    choosing: Choosing,
    gate_up: ExpertMatrix,
    down: ExpertMatrix,
    *,
    own: range | None = None,
    activation: str,
    norm: tuple[torch.Tensor, float] | None = None,
    add_to: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `Ops.mix_experts`. own: the experts whose weights are given; None for all. norm: (weight, eps) of an RMS norm
    of x."""
    own = own or range(logits.shape[1])
    (num_tokens, size), num_experts = x.shape, len(own)
    assert x.stride(1) == 1 and gate_up.numbers.is_contiguous() and down.numbers.is_contiguous() and num_tokens
    assert gate_up.numbers.shape[1] == size and num_experts * size == len(down.numbers)
    choice, num_chosen = choose(logits, choosing, own), choosing.num_chosen
    if num_tokens <= MAX_ALONE:
        inner = multiply_gate_alone(x, choice, gate_up, num_experts=num_experts, activation=activation, norm=norm)
        return multiply_down_alone(inner, choice, down, num_experts=num_experts, add_to=add_to)
    if norm is not None:
        x = rms_norm(x, None, *norm)
    order, starts = sort(choice.experts, num_experts)
    inner = multiply_grouped(x, order, starts, gate_up, num_chosen=num_chosen, activation=activation)
    outputs = multiply_grouped(inner, order, starts, down, num_chosen=num_chosen)
    return combine(outputs, choice, add_to)


def _count_halves(activation: str | None) -> int:
    """Return how many rows of weights an expert has for each output: two where one is the gate of the other."""
    return 1 if activation in (None, "relu2") else 2


def sort(experts: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the assignments of experts int32 [tokens, chosen] expert by expert, int32 [tokens · chosen], and where
    those of each expert start and the last one's end, int32 [num_experts + 1]."""
    order = torch.empty(experts.numel(), dtype=torch.int32, device=experts.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=experts.device)
    is_dependent = has_dependent_launch(experts.get_device())
    span = min(_MOST_SORTED_AT_ONCE, max(32, power_of_2_from(experts.numel())))
    sort_kernel[(num_experts + 1,)](
        experts,
        order,
        starts,
        experts.numel(),
        SPAN=span,
        IS_DEPENDENT=is_dependent,
        num_warps=max(1, min(8, span // 128)),
        **nvidia_options(launch_pdl=is_dependent),
    )
    return order, starts


def multiply_grouped(
    x: torch.Tensor,
    order: torch.Tensor,
    starts: torch.Tensor,
    matrix: ExpertMatrix,
    *,
    num_chosen: int,
    activation: str | None = None,
    tiling: GroupedTiling | None = None,
) -> torch.Tensor:
    """Return the products of all assignments with the weights of their experts, [assignments, outputs].

    With an activation, the first half of an expert's outputs is the gate of the second one (without a gate, it is that
    of all outputs); x has a row for each token,
    and the output is in the order of the sorted assignments. Without one, x is in that order, and the output in that of
    the tokens.
    """
    num_assignments, num_experts = len(order), len(starts) - 1
    num_outputs, size = len(matrix.numbers) // num_experts // _count_halves(activation), x.shape[1]
    out = x.new_empty(num_assignments, num_outputs)
    is_dependent = has_dependent_launch(x.get_device())
    if tiling is None:
        has_large = has_large_shared_memory(x.get_device())
        numbers = matrix.numbers
        has_both = _count_halves(activation) == 2
        tiling = tile_grouped(num_assignments, num_experts, size, has_both, numbers.itemsize, has_large)
    num_blocks = min(num_assignments, num_experts + num_assignments // tiling.rows)
    grouped_kernel[(-(-num_outputs // tiling.outputs), num_blocks)](
        *matrix.operands(x),
        order,
        starts,
        out,
        num_outputs,
        x.stride(0),
        *matrix.scale_strides,
        SIZE=size,
        SPAN=min(tiling.span, matrix.group_size or tiling.span),
        NUM=num_experts,
        PADDED=power_of_2_from(num_experts + 1),
        CHOSEN=num_chosen,
        ROWS=tiling.rows,
        OUTPUTS=tiling.outputs,
        STAGES=tiling.num_stages,
        GATE=activation,
        GATHERS=activation is not None,
        ROWS_FIRST=tiling.rows_first,
        IS_DEPENDENT=is_dependent,
        IS_COMPILED=x.get_device() >= 0,
        num_warps=tiling.num_warps,
        **nvidia_options(launch_pdl=is_dependent),
        **matrix.options,
    )
    return out


def multiply_gate_alone(
    x: torch.Tensor,
    choice: Choice,
    matrix: ExpertMatrix,
    *,
    num_experts: int,
    activation: str,
    norm: tuple[torch.Tensor, float] | None = None,
    tiling: RowTiling | None = None,
) -> torch.Tensor:
    """Return the gated products [tokens · chosen, outputs] of x [tokens, in], assignment by assignment."""
    experts = choice.experts
    num_chosen, size = experts.shape[1], x.shape[1]
    num_outputs = len(matrix.numbers) // num_experts // _count_halves(activation)
    out = x.new_empty(experts.numel(), num_outputs)
    tiling = tiling or tile_row(size, True, num_chosen)
    is_dependent = has_dependent_launch(x.get_device())
    one_row_gate_kernel[(-(-num_outputs // tiling.outputs), experts.numel())](
        *matrix.operands(x),
        x if norm is None else norm[0],
        experts,
        out,
        num_outputs,
        x.stride(0),
        *matrix.scale_strides,
        0.0 if norm is None else norm[1],
        SIZE=size,
        PADDED_SIZE=power_of_2_from(size),
        CHOSEN=num_chosen,
        OUTPUTS=tiling.outputs,
        SPAN=max(tiling.span, matrix.group_size or 0),
        HAS_NORM=norm is not None,
        GATE=activation,
        IS_PARTIAL=choice.is_partial,
        IS_DEPENDENT=is_dependent,
        num_warps=tiling.num_warps,
        **nvidia_options(launch_pdl=is_dependent),
        **matrix.options,
    )
    return out


def multiply_down_alone(
    x: torch.Tensor,
    choice: Choice,
    matrix: ExpertMatrix,
    *,
    num_experts: int,
    add_to: torch.Tensor | None = None,
    tiling: RowTiling | None = None,
) -> torch.Tensor:
    """Return the sum [tokens, outputs] over the experts of each token of their shares times the products of their rows
    of x [tokens · chosen, in]; or add it to `add_to`.

    It must be launched behind `multiply_gate_alone`: it reads the choice before that has ended."""
    num_tokens, num_chosen = choice.experts.shape
    num_outputs, size = len(matrix.numbers) // num_experts, x.shape[1]
    out = x.new_empty(num_tokens, num_outputs) if add_to is None else add_to
    tiling = tiling or tile_row(size, False, num_chosen)
    is_dependent = has_dependent_launch(x.get_device())
    one_row_down_kernel[(-(-num_outputs // tiling.outputs), num_tokens)](
        *matrix.operands(x),
        choice.experts,
        choice.shares,
        out,
        num_outputs,
        out.stride(0),
        *matrix.scale_strides,
        SIZE=size,
        CHOSEN=num_chosen,
        SLOTS=power_of_2_from(num_chosen),
        OUTPUTS=tiling.outputs,
        SPAN=max(tiling.span, matrix.group_size or 0),
        ADDS=add_to is not None,
        IS_PARTIAL=choice.is_partial,
        IS_DEPENDENT=is_dependent,
        num_warps=tiling.num_warps,
        **nvidia_options(launch_pdl=is_dependent),
        **matrix.options,
    )
    return out


def combine(x: torch.Tensor, choice: Choice, add_to: torch.Tensor | None = None) -> torch.Tensor:
    """Return the sum [tokens, size] of the rows of x [tokens · chosen, size] of each token, times their shares; or add
    it to `add_to`."""
    shares = choice.shares
    num_tokens, num_chosen = shares.shape
    size = x.shape[1]
    out = x.new_empty(num_tokens, size) if add_to is None else add_to
    span, is_dependent = min(_COMBINED_AT_ONCE, power_of_2_from(size)), has_dependent_launch(x.get_device())
    combine_kernel[(num_tokens, -(-size // span))](
        x,
        shares,
        out,
        out.stride(0),
        SIZE=size,
        CHOSEN=num_chosen,
        SPAN=span,
        ADDS=add_to is not None,
        IS_PARTIAL=choice.is_partial,
        IS_DEPENDENT=is_dependent,
        **nvidia_options(launch_pdl=is_dependent),
    )
    return out
