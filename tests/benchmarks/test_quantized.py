"""The benchmark of quantized KV caches, on whatever device is there."""

from __future__ import annotations

import json

import pytest
import quantized


def test_a_line_per_format(capsys: pytest.CaptureFixture[str]) -> None:
    quantized.main(["seesay-demo", "--kv", "--rows", "2", "--context", "70", "--rounds", "1"])
    lines = [json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines()]
    assert [line["kv_format"] for line in lines] == list(quantized.FORMATS)
    assert all(line["step_ms"] > 0 and line["tokens_that_fit"] >= 64 for line in lines)
    assert lines[0]["step_ratio"] == lines[0]["bytes_ratio"] == 1
    assert all(line["bytes_ratio"] > 1.5 for line in lines[1:])
