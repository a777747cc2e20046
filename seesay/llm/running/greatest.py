"""The most likely tokens of rows of logits, and log-probabilities, in a way that other rows do not change."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from seesay.device.backends import has_kernels

VECTORS = 32
"""Elements that fill whole vectors of any CPU, two at a time, and lines that a GPU reads at once."""


def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities float32 [N, V] of logits [N, V]."""
    size = logits.shape[-1]
    filled = F.pad(logits.float(), (0, -size % VECTORS), value=-math.inf)  # all rows are aligned alike
    return filled.log_softmax(dim=-1)[:, :size]


def find_best(logits: torch.Tensor, faults: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the greatest of each row of logits [N, V], and the first token that has it, int64 [N]. With NaN in a row,
    the greatest is NaN and the token any one. faults: float32 [N], added to the greatest."""
    if has_kernels(logits.device):
        from seesay.kernels import best_token

        return best_token.find_best(logits, faults)
    best, token_ids = logits.max(dim=-1)
    return (best if faults is None else best.add_(faults)), token_ids


FindGreatest = Callable[[torch.Tensor, int], torch.Tensor]
"""From logits [N, V] and a number to the ids int64 [N, number] of the greatest logits of each row, in their order."""


def find_any_greatest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Of equal logits, it is not said which ones come first, or are taken at all."""
    return logits.topk(count, dim=-1).indices


def find_greatest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Of equal logits, those of the lowest ids are taken, and come first."""
    values, ids = logits.topk(count, dim=-1)
    if count:
        least = values[:, -1:]
        is_least = logits == least
        num_least = (values == least).sum(dim=-1, keepdim=True)
        is_left = is_least & (is_least.cumsum(dim=-1, dtype=torch.int32) > num_least)
        values, ids = logits.masked_fill(is_left, -math.inf).topk(count, dim=-1)
    ids, order = ids.sort(dim=-1)
    order = values.gather(1, order).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)
