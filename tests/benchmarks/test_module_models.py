"""`benchmarks/module_models.py` with tiny models: both sides answer alike, and are compared in one run."""

from __future__ import annotations

import json

import module_models
import pytest


def test_answers_are_those_of_generate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_models, "TOKENS", (2, 12))
    monkeypatch.setattr(module_models, "UNIFORM_TOKENS", 6)
    module_models.main(["--rounds", "1", "--requests", "3", "--batch-size", "2", "--scale", "0.125"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["what"] == "module_models" and figures["batch_size"] == 2
    for name in ("text", "text_uniform", "vision", "vision_uniform"):
        assert figures[f"equal_answers_{name}"] == 1.0
        rate, theirs = figures[f"tokens_per_s_{name}"], figures[f"transformers_tokens_per_s_{name}"]
        assert figures[f"ratio_{name}"] == pytest.approx(rate / theirs, rel=0.1)


def test_a_queue_has_lengths_of_all_sizes() -> None:
    queue = module_models.make_queue(200, 5, has_pictures=False, is_uniform=False)
    lengths = sorted(task.num_tokens for task in queue)
    assert lengths[0] < 8 and lengths[-1] > 200 and lengths[100] < 60
    assert {task.num_tokens for task in module_models.make_queue(9, 5, has_pictures=True, is_uniform=True)} == {64}
