"""Shards of the built-in model beside the whole."""

from __future__ import annotations

import json

import pytest
import shards


def test_shards_give_what_the_whole_gives(capsys: pytest.CaptureFixture[str]) -> None:
    shards.main(["seesay-demo", "--rows", "1,3", "--context", "64", "--rounds", "2", "--tokens", "70"])
    sums, *steps = (json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines())
    assert sums["sums"] > 2 and 0 < sums["largest_error"] < 1e-5 and sums["same_tokens"] == 70
    assert [step["rows"] for step in steps] == [1, 3]
    for step in steps:
        assert 0 < step["ratio"] == pytest.approx(step["shard_ms"] / step["whole_ms"], rel=1e-2)
