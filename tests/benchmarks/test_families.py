"""`benchmarks/families.py` with small sizes on the CPU: towers with the rows of Transformers', and decode steps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import families
import published
import pytest
from published import MODELS, Published

SQUARE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
RESOLUTIONS = [[28, 56], [56, 28], [56, 56]]


def shrink(name: str, vision: dict[str, Any], processor: dict[str, Any], **config: Any) -> Published:
    model = MODELS[name]
    small = {**model.config, "vision_config": {**model.config["vision_config"], **vision}, **config}
    return replace(model, config=small, image_processor={**model.image_processor, **processor}, picture=(56, 84))


CROP = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
SMALL = {
    "qwen2_5_vl": shrink(
        "qwen2_5_vl",
        {
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        {},
    ),
    "llava": shrink("llava", {**SQUARE, "image_size": 28}, CROP, image_seq_length=4),
    "llava_next": shrink(
        "llava_next",
        {**SQUARE, "image_size": 28},
        {**CROP, "image_grid_pinpoints": RESOLUTIONS},
        image_seq_length=4,
        image_grid_pinpoints=RESOLUTIONS,
    ),
    "internvl": shrink(
        "internvl",
        {**SQUARE, "image_size": [28, 28]},
        {"size": {"height": 28, "width": 28}, "max_patches": 4},
        image_seq_length=1,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "num_hidden_layers": 2, "vocab_size": 300, "head_dim": 16,
    }  # fmt: skip
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
    small = {
        name: {**text, **sizes, **(rope if "rope_parameters" in text else {})}
        for name, text in published.DECODERS.items()
    }
    monkeypatch.setattr(published, "DECODERS", small)
    monkeypatch.setattr(families, "MODELS", SMALL)
    monkeypatch.setattr(families, "NUM_STEPS", 5)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """The status, the figures, and the summary."""
    status = families.main(["--device", "cpu", *arguments])
    *records, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return status, records, summary


def test_towers_compute_what_transformers_computes(capsys: pytest.CaptureFixture[str]) -> None:
    status, records, summary = run(capsys, "--skip-decoders")
    assert [record["tower"] for record in records] == list(SMALL) and not summary["left_out"]
    assert status == bool(summary["missed"])
    for record in records:
        assert record["ours_per_s"] > 0 and record["transformers_per_s"] > 0 and record["patches"] > 0
        if record["tower"] != "llava_next":  # which joins the rows of tiles, and Transformers does that elsewhere
            assert record["error"] is not None and record["error"] < 1e-4, record


def test_decoders_are_measured_beside_qwens(capsys: pytest.CaptureFixture[str]) -> None:
    _, records, _ = run(capsys, "--skip-towers", "--only", "llava")
    assert [record["decoder"] for record in records] == ["qwen2_5_vl", "llama", "llama3", "qwen2"]
    assert records[0]["ratio"] is None and all(record["ratio"] > 0 for record in records[1:])
    assert len({record["gigabytes"] for record in records}) <= 2, "all have the same sizes, but for biases"


def test_what_the_limit_leaves_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    status, records, summary = run(capsys, "--limit-s", "0", "--only", "llava")
    assert status == 0 and not records
    assert summary["left_out"] == ["tower of llava", *(f"decoder {name}" for name in families.list_decoders(["llava"]))]


def test_a_ratio_that_is_missed_is_named() -> None:
    records: list[dict[str, Any]] = [
        {"tower": "a", "ratio": 2.9}, {"tower": "b", "ratio": 3.0}, {"decoder": "q", "ratio": None},
        {"decoder": "c", "ratio": 1.06}, {"decoder": "d", "ratio": 1.05},
    ]  # fmt: skip
    assert families.find_missed(records) == [
        "tower of a: 2.9 times Transformers' pictures per second",
        "decoder c: 1.06 times Qwen2.5's time per byte",
    ]
