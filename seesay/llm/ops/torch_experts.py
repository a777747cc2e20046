"""A mixture of experts in plain torch: the oracle of the kernels, and what the CPU computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from seesay.device.linear.expert_linear import ExpertAdaptation, ExpertLinear
from seesay.device.linear.linear_method import LinearKernel
from seesay.llm.plans.routing import Routing


class ExpertChoice(NamedTuple):
    """The experts of each token, int64 [T, chosen], and the share of each in what they compute, float32."""

    experts: torch.Tensor
    shares: torch.Tensor


def choose_experts(logits: torch.Tensor, routing: Routing, bias: torch.Tensor | None) -> ExpertChoice:
    """Return the experts of each token by the router's logits [T, experts]. Every choice is an expert, also where
    logits are not finite."""
    logits = logits.float()
    if routing.jitter is not None:
        return _choose_in_turn(logits, routing.num_chosen, 2 * routing.jitter)
    scores = logits.sigmoid() if routing.scores == "sigmoid" else logits.softmax(dim=-1)
    choice = scores if bias is None else scores + bias
    choice = choice.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if routing.num_groups > 1:
        choice = _keep_best_groups(choice, routing)
    experts = choice.topk(routing.num_chosen, dim=-1).indices
    shares = scores.gather(1, experts)
    if routing.is_normalized:
        shares = shares / shares.sum(dim=-1, keepdim=True).clamp(min=routing.least_sum)
    return ExpertChoice(experts, shares * routing.scale)


def _choose_in_turn(logits: torch.Tensor, num_chosen: int, tolerance: float) -> ExpertChoice:
    """Return the experts with the highest logits, each with its share among those that are left and near it."""
    left = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    experts, shares = [], []
    for _ in range(num_chosen):
        best, index = left.max(dim=-1, keepdim=True)
        is_far = (best - logits) / logits.abs().clamp(min=best) > tolerance
        experts.append(index)
        shares.append(left.masked_fill(is_far, -torch.inf).softmax(dim=-1).gather(1, index))
        left = left.scatter(1, index, -torch.inf)
    return ExpertChoice(torch.cat(experts, dim=1), torch.cat(shares, dim=1))


def _keep_best_groups(choice: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return the scores with those of all but the best groups at -infinity."""
    groups = choice.view(len(choice), routing.num_groups, -1)
    scores = groups.topk(2, dim=-1).values.sum(dim=-1) if routing.sums_two else groups.amax(dim=-1)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept.scatter_(1, scores.topk(routing.num_kept_groups, dim=-1).indices, True)
    return groups.masked_fill(~kept[..., None], -torch.inf).flatten(1)


def run_experts(
    x: torch.Tensor,
    choice: ExpertChoice,
    gate_up: ExpertLinear,
    down: ExpertLinear,
    act_and_mul: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return the sum of what the experts of each token compute times their shares, [T, hidden], for x [T, hidden]. They
    are computed one after another, each for all of its tokens; those that the layers do not have are left out."""
    num_chosen = choice.experts.shape[1]
    chosen, order = choice.experts.flatten().sort(stable=True)
    tokens = order // num_chosen
    shares = choice.shares.flatten().index_select(0, order)
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if x.is_meta:
        return total.to(x.dtype)
    experts = torch.arange(down.experts.start, down.experts.stop + 1, device=x.device)
    bounds = torch.searchsorted(chosen, experts).tolist()
    if gate_up.expert_adaptation is not None and down.expert_adaptation is not None and bounds[0] < bounds[-1]:
        own = slice(bounds[0], bounds[-1])
        sizes = [stop - start for start, stop in pairwise(bounds)]
        rows = x.index_select(0, tokens[own])
        gate_up.expert_adaptation.begin(tokens[own], chosen[own] - down.experts.start)
        inner = act_and_mul(_multiply_adapted(rows, sizes, gate_up.kernels, gate_up.expert_adaptation))
        made = _multiply_adapted(inner, sizes, down.kernels, down.expert_adaptation)
        total.index_add_(0, tokens[own], made.float().mul_(shares[own, None]))
        return total.to(x.dtype)
    for (start, stop), first, second in zip(pairwise(bounds), gate_up.kernels, down.kernels, strict=True):
        if start == stop:
            continue
        picked = tokens[start:stop]
        made = second(act_and_mul(first(x.index_select(0, picked))))
        total.index_add_(0, picked, made.float().mul_(shares[start:stop, None]))
    return total.to(x.dtype)


def _multiply_adapted(
    x: torch.Tensor, sizes: Sequence[int], kernels: Sequence[LinearKernel], adaptation: ExpertAdaptation
) -> torch.Tensor:
    """Return what experts compute for x [N, in], of which `sizes` rows one after another are those of each, with what
    is added."""
    pieces = zip(torch.split(x, list(sizes)), kernels, strict=True)
    made = torch.cat([kernel(own) for own, kernel in pieces if len(own)])
    adaptation.add(x, made)
    return made
