"""Proposals of which a given share is accepted, whatever the weights of what makes them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from eagle_heads import describe_head, make_tensors, write_head

from seesay.checkpoint.model_path import resolve_checkpoint
from seesay.llm.plans.step_plan import Row
from seesay.llm.running import launched_step
from seesay.llm.running.proposals import rounds as proposal_rounds
from seesay.llm.running.sampler import Sampled

MOST_KNOWN = 32000


class ForcedAcceptance:
    """While it is open, engines of this process accept each proposed token behind accepted ones with probability
    `rate`, whatever it is. What they answer, and all that they compute, is as without it."""

    def __init__(self, rate: float) -> None:
        self._rate, self._rng = rate, random.Random(1)

    def __enter__(self) -> None:
        self._take, self._count = launched_step.take_choices, proposal_rounds.count_right
        launched_step.take_choices = self._take_forced
        proposal_rounds.count_right = self._count_forced

    def __exit__(self, *_: object) -> None:
        launched_step.take_choices = self._take
        proposal_rounds.count_right = self._count

    def _count_forced(self, proposed: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        is_right = torch.rand(proposed.shape, device=chosen.device) < self._rate
        return is_right.long().cumprod(dim=1).sum(dim=1)

    def _take_forced(self, row: Row, choices: Iterator[Sampled]) -> Any:
        if not row.drafts:
            return self._take(row, choices)
        taken = list(islice(choices, 1 + len(row.drafts)))
        right = [-1 if choice.token_id is None else choice.token_id for choice in taken[:-1]]
        drafts = tuple(token_id if self._rng.random() < self._rate else -1 for token_id in right)
        return self._take(row._replace(drafts=drafts), iter(taken))


def write_random_head(folder: Path, model: str) -> Path:
    """Write an EAGLE-3 head of the published shape for a model: a layer like one of it, and 32,000 tokens."""
    described = json.loads((resolve_checkpoint(model) / "config.json").read_text())
    vocab_size = described.get("text_config", described)["vocab_size"]
    config = describe_head(described, draft_vocab_size=min(MOST_KNOWN, vocab_size // 2))
    return write_head(folder, config, make_tensors(config, dtype=torch.bfloat16))
