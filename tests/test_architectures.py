"""docs/architectures.md says what becomes of every architecture of the installed Transformers."""

from __future__ import annotations

import re

import pytest
from architectures import PAGE, RUNS, TESTED, UNDECIDED, describe, list_architectures

ROW = re.compile(r"\| `(\w+)` \| `([\w.-]+)` \| (.+) \|")
ROWS = [match.groups() for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := ROW.fullmatch(line))]
SAMPLES = ("BertLMHeadModel", "DiffLlamaForCausalLM", "GPT2LMHeadModel", "MambaForCausalLM", "RwkvForCausalLM")
"""Architectures that are probed in a second or so, with different reasons."""


def test_the_page_has_the_architectures_of_transformers() -> None:
    assert [(architecture, kind) for architecture, kind, _ in ROWS] == list_architectures(), (
        "run: python tests/support/architectures.py > docs/architectures.md"
    )
    assert {RUNS, TESTED} <= {result for *_, result in ROWS}
    assert sum(result == UNDECIDED for *_, result in ROWS) < len(ROWS) / 8


@pytest.mark.parametrize(
    ("architecture", "kind", "result"),
    [
        pytest.param(*row, marks=() if row[2].startswith("family ") or row[0] in SAMPLES else pytest.mark.slow)
        for row in ROWS
        if row[2] != TESTED
    ],
)
def test_what_the_page_says_becomes_of_it(architecture: str, kind: str, result: str) -> None:
    assert describe(architecture, kind) == result, "run: python tests/support/architectures.py > docs/architectures.md"
