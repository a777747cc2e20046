"""Steps that propose and verify several times on the device."""

from __future__ import annotations

from typing import Any

import pytest
from asking import loop_of
from llm.eager_graphs import record_eagerly

from seesay import Pipeline
from seesay.llm.running.proposals.rounds import ProposalRounds


def take_rounds(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let steps of a pipeline take the path of graphs, and several rounds. Returns a list of the sequences of steps of
    rounds, which grows with them."""
    record_eagerly(loop_of(pipe.engine)._runner)
    return watch_rounds(monkeypatch)


def watch_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the numbers of sequences of steps of several rounds, which grows with them."""
    steps = list[int]()
    launch = ProposalRounds._launch_rounds

    def watch(rounds: ProposalRounds, plan: Any) -> Any:
        launched = launch(rounds, plan)
        steps.extend([] if launched is None else [len(plan.rows)])
        return launched

    monkeypatch.setattr(ProposalRounds, "_launch_rounds", watch)
    return steps
