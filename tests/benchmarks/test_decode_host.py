"""What the host copies for decode steps by graphs does not depend on how many rows there are."""

from __future__ import annotations

import json

import decode_host
import pytest


def test_a_step_copies_the_blocks_that_are_new(capsys: pytest.CaptureFixture[str]) -> None:
    decode_host.main(["--rows", "24", "--steps", "40"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["options"] for line in lines] == list(decode_host.KINDS)
    for line in lines:
        assert all(line[f"{name}_us"] > 0 for name in ("apply", "launch", "sample", "collect"))
        assert line["bytes"] <= line["most_bytes"] <= 24 * 12, "a place and a block for each row at most"
        assert line["most_bytes"] % 12 == 0
