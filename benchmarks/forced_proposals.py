"""Proposals of which a given share is right, whatever the weights of what makes them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from eagle_heads import describe_head, make_tensors, write_head

from seesay import Pipeline
from seesay.checkpoint.model_path import resolve_checkpoint

MOST_KNOWN = 32000


class Oracle:
    """Replaces what the model or layer that proposes in an engine in this process proposes, once it has seen the
    answers. Each token is the right one with probability `rate`, and a wrong one otherwise."""

    def __init__(self, pipe: Pipeline, rate: float) -> None:
        self._rate, self._rng = rate, random.Random(1)
        self._seen: list[Any] = []
        self._answers: dict[tuple[int, ...], list[int]] = {}
        core: Any = pipe.engine.core
        draft = core.steps.speculation._draft
        self._propose, draft.propose = draft.propose, self._replace_all

    def learn(self) -> None:
        """Take the answers since the last call as the right ones, and begin to draw anew."""
        self._answers = {find_prompt(seq): seq.token_ids[seq.num_prompt_tokens :].tolist() for seq in self._seen}
        self._seen, self._rng = [], random.Random(1)

    def _replace_all(self, sequences: Sequence[Any], most: int) -> Mapping[int, tuple[int, ...]]:
        self._seen += [seq for seq in sequences if not any(seq is other for other in self._seen)]
        found = self._propose(sequences, most)
        return {seq.seq_id: self._replace(seq, found[seq.seq_id]) for seq in sequences if seq.seq_id in found}

    def _replace(self, seq: Any, proposed: tuple[int, ...]) -> tuple[int, ...]:
        answer = self._answers.get(find_prompt(seq), [])
        right = answer[seq.num_generated : seq.num_generated + len(proposed)]
        return tuple(token if self._rng.random() < self._rate else token ^ 1 for token in right) or proposed


def find_prompt(seq: Any) -> tuple[int, ...]:
    return tuple(seq.token_ids[: seq.num_prompt_tokens].tolist())


def write_random_head(folder: Path, model: str) -> Path:
    """Write an EAGLE-3 head of the published shape for a model: a layer like one of it, and 32,000 tokens."""
    described = json.loads((resolve_checkpoint(model) / "config.json").read_text())
    vocab_size = described.get("text_config", described)["vocab_size"]
    config = describe_head(described, draft_vocab_size=min(MOST_KNOWN, vocab_size // 2))
    return write_head(folder, config, make_tensors(config, dtype=torch.bfloat16))
