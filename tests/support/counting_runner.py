"""A runner whose model counts: behind token t comes t + 1. It checks what it is asked to compute."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from seesay.llm.plans.step_plan import BegunSequence, Row, StepPlan
from seesay.llm.running.launched_step import StepResult
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MultimodalInput

VOCAB = 100


class CountedRow:
    """A sequence of the runner: its known tokens, those that steps sampled behind them, those that were computed."""

    def __init__(self, begun: BegunSequence, slot: int) -> None:
        self.begun, self.slot = begun, slot
        self.params = begun.params
        self.tokens: list[int] = begun.token_ids.tolist()
        self.sampled: dict[int, int] = {}
        self.computed: list[int] = []
        self.blocks: list[int] = []
        self.counts: Any = "counted"
        self.media_end = 0

    def record(self, start: int, token_ids: tuple[int, ...]) -> None:
        assert start <= len(self.tokens), "tokens before these are missing"
        self.tokens[start:] = token_ids

    def token_at(self, place: int) -> int:
        return self.tokens[place] if place < len(self.tokens) else self.sampled[place]


class CountingRunner:
    """Takes the place of a `ModelRunner` of what proposes. steps: rows of each step, as (sequence, start, number of
    tokens, whether it samples). plans: those that were applied."""

    def __init__(self, *, num_blocks: int = 20, num_axes: int = 1, **limits: int) -> None:
        sizes: dict[str, Any] = {
            "max_batch_size": 4,
            "max_step_tokens": 16,
            "session_len": 40,
            "block_size": 4,
            **limits,
        }
        self.limits = RunnerLimits(**sizes)
        self.num_blocks, self.stream = num_blocks, None
        self.decoder = SimpleNamespace(traits=SimpleNamespace(vocab_size=VOCAB, num_position_axes=num_axes))
        self.rows: dict[int, CountedRow] = {}
        self.device_rows = SimpleNamespace(token_places=np.full(64, 5))
        self.steps: list[list[tuple[int, int, int, bool]]] = []
        self.plans: list[StepPlan] = []
        self.spliced: list[Mapping[int, Any]] = []

    def apply(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        for seq_id in plan.ended_ids:
            del self.rows[seq_id]
        for begun in plan.begun:
            assert begun.seq_id not in self.rows, "it was begun already"
            self.rows[begun.seq_id] = CountedRow(begun, slot=len(self.plans))
        for added in plan.added_blocks:
            self.rows[added.seq_id].blocks += added.block_ids
        held = [block for row in self.rows.values() for block in row.blocks]
        assert len(set(held)) == len(held) <= self.num_blocks, "two sequences have a block"

    def launch(self, plan: StepPlan, embeddings: Mapping[int, Any]) -> Any:
        assert plan.num_tokens <= self.limits.max_step_tokens
        self.steps.append([tuple(row[:4]) for row in plan.rows])  # type: ignore[misc]
        self.spliced.append(embeddings)
        return SimpleNamespace(step=SimpleNamespace(rows=plan.rows), found=dict(map(self._compute, plan.rows)))

    def _compute(self, row: Row) -> tuple[int, tuple[int, ...]]:
        own, stop = self.rows[row.seq_id], row.start + row.num_tokens
        before = [own.token_at(place) for place in range(row.start)]
        assert own.computed[: row.start] == before, "keys and values are those of other tokens"
        assert stop <= len(own.blocks) * self.limits.block_size, "there is no block for it"
        own.computed[row.start :] = [own.token_at(place) for place in range(row.start, stop)]
        if row.samples:
            own.sampled[stop] = own.token_at(stop - 1) + 1
        return row.seq_id, (own.sampled[stop],) if row.samples else ()

    def sample(self, launched: Any) -> None:
        launched.is_sampled = True

    def collect(self, launched: Any) -> StepResult:
        assert launched.is_sampled
        return StepResult(token_ids={seq_id: tokens for seq_id, tokens in launched.found.items() if tokens})

    def take_steps(self) -> list[list[tuple[int, int, int, bool]]]:
        """Return the rows of the steps since the last call."""
        steps, self.steps = self.steps, []
        return steps


def make_counted(seq_id: int, *token_ids: int, params: Any, **prompt: Any) -> Sequence:
    """A sequence whose prompt has these tokens."""
    places = np.arange(len(token_ids))
    given = {"positions": places, "next_position": len(token_ids), **prompt}
    return Sequence(seq_id, MultimodalInput(token_ids=np.array(token_ids), **given), params)


def grow(seq: Sequence, *token_ids: int) -> Sequence:
    """Let a sequence get tokens."""
    for token_id in token_ids:
        seq.append(token_id)
    return seq
