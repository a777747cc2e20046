"""Answers that repeat their prompts, of a model with random weights.

Such a model says nothing that stood in its prompt. Rows of two of its tensors are replaced so that it does: each token
of a cycle of tokens is followed by the next one of the cycle. Their embeddings are random and so large that no layer
changes what they say, and the output row of each is the embedding of the one before it. All layers are computed as
before, and what proposes tokens is as in real use.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from seesay import Pipeline
from seesay.checkpoint import Checkpoint
from seesay.checkpoint.model_path import resolve_checkpoint

MOST_IN_CYCLE = 8192
FIRST_ID = 32
"""Tokens below it, and the last eighth of the vocabulary, may be special ones."""
NUM_BEFORE = 8
"""Tokens at the beginning of a text that stand at the end of its prompt, too."""
_SIZE = 1000.0
"""Of the components of an embedding: many times what layers add."""
_TABLE, _HEAD = "embed_tokens.weight", "lm_head.weight"


class CopyingModel:
    """Makes a model repeat its prompts. edits: share of the tokens of a prompt that its answer changes."""

    def __init__(self, model: str, edits: float) -> None:
        self._checkpoint = Checkpoint.load(resolve_checkpoint(model))
        names = sorted(self._checkpoint.tensor_names(), key=len)
        heads = [name for name in names if name.endswith(_HEAD)]
        if not heads:
            raise SystemExit(f"{model}: the output layer is the table of embeddings: give a model with {_HEAD!r}")
        self._names = next(name for name in names if name.endswith(_TABLE)), heads[0]
        self._table, self._head = (self._read(name) for name in self._names)
        self._edits = edits
        last = len(self._table) * 7 // 8
        self._cycle = random.Random(3).sample(range(FIRST_ID, last), min(MOST_IN_CYCLE, last - FIRST_ID))

    def apply(self, pipe: Pipeline) -> None:
        """Replace the weights of an engine."""
        ids = torch.tensor(self._cycle)
        table, head = self._table.clone(), self._head.clone()
        drawn = torch.randn(len(ids), table.shape[1], generator=torch.Generator().manual_seed(5))
        table[ids] = (_SIZE * drawn).to(table.dtype)
        head[ids] = drawn.roll(1, dims=0).to(head.dtype)
        pipe.update_weights(dict(zip(self._names, (table, head), strict=True)), partial=True)

    def make_prompts(self, count: int, num_tokens: int) -> tuple[list[list[int]], list[list[int]]]:
        """Return prompts, each a text of `num_tokens` in which some tokens are others, and the beginning of that text;
        and the texts, which are the answers."""
        if num_tokens + NUM_BEFORE > len(self._cycle):
            raise SystemExit(f"answers must have at most {len(self._cycle) - NUM_BEFORE} tokens with this model")
        rng = random.Random(4)
        prompts, answers = [], []
        for _ in range(count):
            start = rng.randrange(len(self._cycle))
            walk = [self._cycle[(start + i) % len(self._cycle)] for i in range(NUM_BEFORE + num_tokens)]
            edited = [rng.choice(self._cycle) if rng.random() < self._edits else token for token in walk[NUM_BEFORE:]]
            prompts.append([*walk[:NUM_BEFORE], *edited, *walk[:NUM_BEFORE]])
            answers.append(walk[NUM_BEFORE:])
        return prompts, answers

    def _read(self, name: str) -> torch.Tensor:
        for _, tensor in self._checkpoint.slices([name], "cpu"):
            return tensor.read(tuple(map(range, tensor.shape))).clone()
        raise AssertionError(name)


def count_changed(answers: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> int:
    """Return how many answers are not the texts that their prompts have."""
    return sum(list(one) != list(other) for one, other in zip(answers, expected, strict=True))
