"""`benchmarks/states.py` with tiny models: each command gives its figures."""

from __future__ import annotations

import json

import pytest
import states


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["decode", "--layers", "4"], ["ms_per_token", "ratio"]),
        (["second", "--layers", "4", "--text", "640"], ["first_ms", "second_ms"]),
        (["latent", "--layers", "2", "--rows", "2"], ["native_ms_per_step", "modules_ms_per_step"]),
    ],
    ids=lambda value: value[0],
)
def test_each_command(
    arguments: list[str], names: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SHORT", 2)
    monkeypatch.setattr(states, "LONG", 6)
    monkeypatch.setattr(states, "BLOCK", 16)
    monkeypatch.setattr(states, "CONTEXT", 32)
    states.main([*arguments, "--width", "16"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["what"] == f"states {arguments[0]}" and all(figures[name] > 0 for name in names)
    if arguments[0] == "latent":  # 576 values instead of 16 heads of 192 and 128
        assert figures["native_bytes_ratio"] == pytest.approx(576 / (16 * (192 + 192)), rel=0.25)
