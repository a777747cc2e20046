"""The benchmark of hard grammars beside a small one: each is new, and the times are printed."""

from __future__ import annotations

import json
from pathlib import Path

import hard_grammars
import pytest

from seesay.config.grammar import read_grammar


def test_each_schema_is_new_and_as_large_as_one_may_be() -> None:
    forms = [hard_grammars.make_body(10_000)["response_format"] for _ in range(3)]
    assert len({json.dumps(form) for form in forms}) == 3
    assert all(read_grammar(form) for form in forms)


@pytest.mark.slow
def test_the_figures_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_grammars, "KINDS", {"alone": 0, "beside others": 200})
    monkeypatch.setenv("SEESAY_API_KEYS", "")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    hard_grammars.main(["--rounds", "2", "--hard-keys", "2"])
    alone, beside = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (alone["kind"], beside["kind"]) == ("alone", "beside others")
    assert all(0 < figures["first_token_s"] <= figures["longest_s"] for figures in (alone, beside))
