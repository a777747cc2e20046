"""The benchmark of structured answers: steps are counted, and jumps save some."""

from __future__ import annotations

import json

import pytest
import structured


@pytest.mark.slow
def test_jumps_save_steps_of_answers_with_a_schema_alone(capsys: pytest.CaptureFixture[str]) -> None:
    structured.main(["--rows", "2", "--rounds", "1", "--letters", "3", "--device", "cpu"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(line["kind"], line["jumps"]): line for line in lines}
    assert set(found) == {(kind, jumps) for kind in structured.KINDS for jumps in (False, True)}
    for (kind, jumps), line in found.items():
        assert (line["jumped_tokens"] > 0) == (jumps and kind != "plain")
        assert line["tokens"] > 0 < line["s_per_answer"]
    assert found["plain", True]["steps"] == found["plain", False]["steps"] >= structured.PLAIN_TOKENS
    assert found["all", True]["steps"] < found["all", False]["steps"] / 2
