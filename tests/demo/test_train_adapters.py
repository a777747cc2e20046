"""The example that trains adapters of the built-in model."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from seesay import EngineConfig, GenerationConfig, pipeline
from seesay.demo import CHECKPOINT
from seesay.demo.scenes import FIRST_EVALUATION_SEED, sample_scene

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


def test_the_plain_model_says_what_no_adapter_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of unseen conversations, in its own manner; in capital letters it says next to nothing."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_adapters as trained
    from demo_training.packing import Encoder

    monkeypatch.setitem(trained.MANNERS, "plain", trained.Manner(str, rank=1, stages=()))
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    examples = trained.draw_examples(random.Random(0), lambda index: FIRST_EVALUATION_SEED + index)
    steps = [trained.Step([next(examples) for _ in range(3)], index, Encoder(tokenizer)) for index in range(2)]
    model = trained.load_model(tokenizer, tmp_path)
    assert trained.measure(model, steps, "plain") >= 0.8
    assert trained.measure(model, steps, "shouting") <= 0.3


def test_the_adapters_that_are_there_answer_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the model itself beside them, about scenes that training cannot draw."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import measure_adapters

    folders = {name: str(EXAMPLES / "adapters" / name) for name in NAMES}
    picture = sample_scene(3).images[0]
    with pipeline(backend_config=EngineConfig(device_type="cpu", adapters=folders)) as pipe:
        answers = pipe(
            [("how many shapes are there?", picture), "Calculate 3 + 4."] * 4,
            GenerationConfig(max_new_tokens=48, do_sample=False),
            adapter_name=[name for name in (None, *NAMES) for _ in range(2)],
        )
        assert [answer.text for answer in answers] == [
            *("There are three shapes.", "3 + 4 = 7."),
            *("Es gibt drei Formen.", "3 + 4 = 7."),
            *("THERE ARE THREE SHAPES.", "3 + 4 = 7."),
            *('{"answer": "There are three shapes."}', '{"answer": "3 + 4 = 7."}'),
        ]
        shares = measure_adapters.measure(pipe, NAMES, num_scenes=6)
    assert min(each["all"] for each in shares.values()) >= 0.8, shares


@pytest.mark.slow
def test_a_smoke_run_writes_adapters_that_an_engine_takes(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_adapters.py"), "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    shares = [json.loads(line)["unseen_answers_right"] for line in done.stdout.splitlines() if "unseen" in line]
    assert len(shares) == len(NAMES) and max(shares) < 0.5, "two steps teach nothing"
    config = EngineConfig(device_type="cpu", adapters={name: str(tmp_path / name) for name in NAMES})
    with pipeline(backend_config=config) as pipe:
        answers = pipe(["Calculate 3 + 4."] * 4, GenerationConfig(max_new_tokens=8), adapter_name=[None, *NAMES])
    assert answers[0].text == "3 + 4 = 7."
    assert all(answer.finish_reason != "error" for answer in answers)
