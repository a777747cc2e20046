"""The benchmark of many grammars at once: each row has its own, and none ends early."""

from __future__ import annotations

import json

import distinct_grammars
import pytest

from seesay.demo import CHECKPOINT


def test_each_row_has_another_grammar() -> None:
    forms = [json.dumps(distinct_grammars.make_form(row)) for row in range(256)]
    assert len(set(forms)) == 256


@pytest.mark.slow
def test_answers_with_grammars_are_as_long_as_others(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(CHECKPOINT)
    distinct_grammars.main([model, "--rows", "6", "--tokens", "12", "--rounds", "1", "--device", "cpu"])
    plain, grammars, quotient = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert plain["rows"] == grammars["rows"] == 6 and plain["seconds"] > 0
    assert quotient["ms_per_token"] == pytest.approx(grammars["ms_per_token"] / plain["ms_per_token"], rel=0.01)
