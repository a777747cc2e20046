"""The example that trains adapters of the built-in model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seesay import EngineConfig, GenerationConfig, pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("german", "shouting", "json")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("There are three red circles.", "Es gibt drei rote Kreise."),
        ("No.", "Nein."),
        ("quoth the raven", None),
    ],
)
def test_answers_in_german(answer: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from demo_training.german import translate

    assert translate(answer) == expected


@pytest.mark.slow
def test_a_smoke_run_writes_adapters_that_an_engine_takes(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_adapters.py"), "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    config = EngineConfig(device_type="cpu", adapters={name: str(tmp_path / name) for name in NAMES})
    with pipeline(backend_config=config) as pipe:
        answers = pipe(["Calculate 3 + 4."] * 4, GenerationConfig(max_new_tokens=8), adapter_name=[None, *NAMES])
    assert answers[0].text == "3 + 4 = 7."
    assert all(answer.finish_reason != "error" for answer in answers)
