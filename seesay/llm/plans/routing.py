"""How a token's experts are chosen, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How the router's logits become experts and their shares.

    Scores are the softmax of a token's logits over all experts, or their sigmoid. The `num_chosen` best are taken; a
    bias per expert may be added to the scores for this choice alone (DeepSeek-V3, arXiv 2412.19437, 2.1.2).
    With `num_groups`, experts come from the `num_kept_groups` best of so many equal groups alone: a group counts as its
    best expert or, with `sums_two`, as the sum of its two best ones.
    A share is the score times `scale`, of all chosen ones divided by their sum, at least `least_sum`, if
    `is_normalized`.
    jitter: scores are the logits, and the best experts are taken in turn, each with a share of its own: its softmax
    over the experts that are left and less than twice this, relative to the larger logit, below it (SparseMixer-v2,
    arXiv 2409.12136), without a bias; None: as above.
    """

    num_experts: int
    num_chosen: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    is_normalized: bool = False
    least_sum: float = 1e-20
    scale: float = 1.0
    num_groups: int = 1
    num_kept_groups: int = 1
    sums_two: bool = False
    jitter: float | None = None
