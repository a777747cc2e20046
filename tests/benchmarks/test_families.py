"""`benchmarks/families.py` with small sizes on the CPU: towers with the rows of Transformers', and decode steps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import families
import published
import pytest
from published import Published
from published_models import MODELS

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
    "qwen3_vl": shrink(
        "qwen3_vl",
        {
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
            "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
        },
        {},
    ),
    "pixtral": shrink("pixtral", {**SQUARE, "head_dim": 16}, {}),
    "mistral3": shrink("mistral3", {**SQUARE, "head_dim": 16}, {}),
    "gemma3": shrink(
        "gemma3", {**SQUARE, "image_size": 56}, {"size": {"height": 56, "width": 56}}, mm_tokens_per_image=4
    ),
    "idefics3": shrink(
        "idefics3", {**SQUARE, "image_size": 28},
        {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}},
    ),
    "smolvlm": shrink(
        "smolvlm", {**SQUARE, "image_size": 42},
        {"size": {"longest_edge": 90}, "max_image_size": {"longest_edge": 45}},
    ),
    "minicpmv": shrink("minicpmv", {**SQUARE, "image_size": 28}, {"scale_resolution": 28, "image_feature_size": 4},
        query_num=4, hidden_size=128,
    ),
    "phi3_v": replace(
        shrink("phi3_v", {**SQUARE, "image_size": 28}, {"num_img_tokens": 1}), options={"tile": 28}
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "num_hidden_layers": 2, "vocab_size": 300, "head_dim": 16,
    }  # fmt: skip
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
    scaling = {"rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}}
    small = {
        name: {
            **text,
            **sizes,
            **(rope if "rope_parameters" in text else {}),
            **(scaling if "rope_scaling" in text else {}),
        }
        for name, text in published.DECODERS.items()
    }
    monkeypatch.setattr(published, "DECODERS", small)
    monkeypatch.setattr(families, "MODELS", SMALL)
    monkeypatch.setattr(families, "NUM_STEPS", 5)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """The status, the figures, and the summary."""
    status = families.main(["--device", "cpu", "--limit-s", "3600", *arguments])
    *records, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return status, records, summary


@pytest.mark.parametrize(
    "names", [("qwen2_5_vl", "llava_next", "minicpmv"), pytest.param(tuple(SMALL), marks=pytest.mark.slow)]
)
def test_towers_compute_what_transformers_computes(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Some of Transformers' and one of our references; the contract of families compares the towers of all."""
    status, records, summary = run(capsys, "--skip-decoders", "--only", *names)
    pictures, towers = records[::2], records[1::2]
    assert [record["tower"] for record in towers] == list(names) and not summary["left_out"]
    assert [record["pictures"] for record in pictures] == list(names)
    assert status == bool(summary["missed"])
    for record in towers:
        assert record["patches"] > 0 and record["tflops"] >= 0 and record["transformers_tflops"] >= 0
        if record["tower"] != "llava_next":  # which joins the rows of tiles, and Transformers does that elsewhere
            assert record["error"] is not None and record["error"] < 1e-4, record
    for record in records:
        assert record["ours_per_s"] > 0 and record["transformers_per_s"] > 0
        assert record["ratio"] == pytest.approx(record["ours_per_s"] / record["transformers_per_s"], rel=0.05)


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
        {"pictures": "a", "ratio": 2.9}, {"pictures": "b", "ratio": 3.0}, {"tower": "a", "ratio": 0.9},
        {"tower": "b", "ratio": 1.0}, {"decoder": "q", "ratio": None},
        {"decoder": "c", "ratio": 1.06}, {"decoder": "d", "ratio": 1.05},
    ]  # fmt: skip
    assert families.find_missed(records) == [
        "pictures of a: 2.9 times Transformers' per second",
        "tower of a: 0.9 times Transformers' pictures per second",
        "decoder c: 1.06 times Qwen2.5's time per byte",
    ]
