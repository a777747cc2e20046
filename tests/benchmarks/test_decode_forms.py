"""The benchmark of forms of one decoder: each is measured, and divided by the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import decode_forms
import pytest


def test_forms_are_options_of_an_engine(tiny_checkpoint: Callable[[str], Path]) -> None:
    model = str(tiny_checkpoint("qwen2"))
    architecture = decode_forms.read_architecture(model)
    assert architecture == "Qwen2ForCausalLM"
    assert decode_forms.make_options(model, "fp8", architecture=architecture) == {"model": model, "quantization": "fp8"}


@pytest.mark.slow
def test_figures_of_a_model_and_its_modules(
    tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_checkpoint("qwen2"))
    decode_forms.main(
        [
            model, "--forms", "plain,modules", "--other", f"again={model}", "--batches", "1,2", "--tokens", "8",
            "--device", "cpu",
        ]
    )  # fmt: skip
    figures = [json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines()]
    forms = ["plain", "modules", "again"]
    assert [figure["form"] for figure in figures if figure["what"] == "start"] == forms
    decoded = [figure for figure in figures if figure["what"] == "decode"]
    assert [(figure["form"], figure["batch"]) for figure in decoded] == [(form, n) for form in forms for n in (1, 2)]
    plain = {figure["batch"]: figure["ms_per_step"] for figure in decoded[:2]}
    for figure in decoded:
        assert figure["quotient"] == pytest.approx(figure["ms_per_step"] / plain[figure["batch"]], abs=0.001)
