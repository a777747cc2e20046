"""`seesay check`: agreement with Transformers, and what does not agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from seesay.cli import main
from seesay.commands.models import check


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_agrees_with_transformers(
    name: str, tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tiny_checkpoint(name)), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all("positions: largest difference of logits" in line for line in lines[:3])
    assert "agrees with Transformers (limit 0.001 in float32)" in lines[3]


def test_other_logits_do_not_agree(
    tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = check._compute_transformers

    def err(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
        return compute(model, ids) * 1.01

    monkeypatch.setattr(check, "_compute_transformers", err)
    assert main(["check", str(tiny_checkpoint("llama")), "--device", "cpu"]) == 1
    assert "DOES NOT AGREE with Transformers" in capsys.readouterr().out


def test_a_model_that_transformers_has_not_is_named(
    tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tiny_checkpoint("molmo")), "--device", "cpu"]) == 1
    assert "Transformers has no model MolmoForCausalLM to compare with" in capsys.readouterr().err
