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
    return _watch("_launch_rounds", monkeypatch)


def watch_resumed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The same of steps that got rounds which were launched before they were planned."""
    return _watch("_resume", monkeypatch)


def _watch(name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps = list[int]()
    launch = getattr(ProposalRounds, name)

    def watch(rounds: ProposalRounds, *args: Any) -> Any:
        launched = launch(rounds, *args)
        steps.extend([] if launched is None else [len(launched.step.rows)])
        return launched

    monkeypatch.setattr(ProposalRounds, name, watch)
    return steps
