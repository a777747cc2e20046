"""The benchmark of quantization, on whatever device is there."""

from __future__ import annotations

import json
from typing import Any

import pytest
import quantized
from quantized_scores import FORMS, make_table

from seesay.demo import CHECKPOINT
from seesay.demo.scenes import TASKS


def read_results(printed: str) -> list[dict[str, Any]]:
    lines = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line.removeprefix("RESULT ")) for line in lines]


def test_a_line_per_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert quantized.main(["seesay-demo", "--kv", "--rows", "2", "--context", "70", "--rounds", "1"]) == 0
    lines = read_results(capsys.readouterr().out)
    assert [line["kv_format"] for line in lines] == list(quantized.KV_FORMATS)
    assert all(line["step_ms"] > 0 and line["tokens_that_fit"] >= 64 for line in lines)
    assert lines[0]["step_ratio"] == lines[0]["bytes_ratio"] == 1
    assert all(line["bytes_ratio"] > 1.5 for line in lines[1:])


@pytest.mark.slow
def test_speed_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["no/such-model", "--speed", "--forms", "awq", "--scale", "0.005", "--side-px", "56"]
    assert quantized.main([*arguments, "--awq", str(CHECKPOINT)]) == 0
    printed = capsys.readouterr().out
    single, text, image = (line for line in read_results(printed) if line.get("form") == "awq")
    assert [line["what"] for line in (single, text, image)] == ["single", "text", "image"]
    figures = single["tpot_ms"], single["ttft_ms"], text["req_per_s"], image["req_per_s"]
    assert f"| awq | {' | '.join(map(str, figures))} |" in printed


@pytest.mark.slow
def test_scores_of_a_form_that_loses_nothing_and_of_one_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["seesay-demo", "--scores", "--scenes", "1", "--forms", "kv-int8"]
    assert quantized.main(arguments) == 0
    printed = capsys.readouterr().out
    assert sorted(line["form"] for line in read_results(printed)) == ["kv-int8", "plain"]
    assert "| kv-int8 | 100.0 |" in printed
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")
    assert quantized.main(["no/such-model", *arguments[1:]]) == 1
    printed = capsys.readouterr().out
    assert "error" in read_results(printed)[0] and "kv-int8: it has no scores" in printed


def test_forms_that_lose_more_than_they_may_are_named() -> None:
    forms = [form for form in FORMS if form.name in ("kv-int8", "kv-int4")]
    plain = dict.fromkeys(TASKS, 0.99)
    allowed = {"kv-int8": plain | {"read": 0.98}, "kv-int4": plain | {"chart": 0.96, "count": 1.0}}
    table, missed = make_table({"plain": plain, **allowed}, forms)
    assert not missed and table.splitlines()[-1].endswith("| 3.0 | 3 |")
    _, missed = make_table({"plain": plain, **allowed, "kv-int8": plain | {"read": 0.978}}, forms)
    assert missed == ["kv-int8: 1.2 points of read are lost, 1 may be"]
