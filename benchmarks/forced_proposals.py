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
from seesay.llm.running.proposals import round_state
from seesay.llm.running.proposals.round_state import CountedRound
from seesay.llm.running.sampler import Sampled

MOST_KNOWN = 32000


class ForcedAcceptance:
    """While it is open, engines of this process accept each proposed token behind accepted ones with probability
    `rate`, whatever it is. What they answer, and all that they compute, is as without it."""

    def __init__(self, rate: float) -> None:
        self._rate, self._rng = rate, random.Random(1)

    def __enter__(self) -> None:
        self._take, self._count = launched_step.take_choices, round_state.count_round
        launched_step.take_choices = self._take_forced
        round_state.count_round = self._count_forced

    def __exit__(self, *_: object) -> None:
        launched_step.take_choices = self._take
        round_state.count_round = self._count

    def _count_forced(
        self,
        state: torch.Tensor,
        own: torch.Tensor,
        at: torch.Tensor,
        proposed: torch.Tensor,
        token_ids: torch.Tensor,
        best: torch.Tensor,
    ) -> CountedRound:
        is_right = torch.rand(proposed.shape, device=proposed.device) < self._rate
        proposed = torch.where(is_right, token_ids[at[:, :-1]], proposed)
        return self._count(state, own, at, proposed, token_ids, best)

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
