"""`benchmarks/preprocess.py` compares the same work: both ways make as many numbers of a picture."""

from __future__ import annotations

import json
from typing import Any

import preprocess
import pytest
from published import open_family
from published_models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_both_make_the_same_numbers(name: str) -> None:
    model, pixels = MODELS[name], preprocess.draw_pixels((30, 41))
    ours = preprocess.make_normalized(model, open_family(model), pixels)()
    theirs: Any = preprocess.make_theirs(model, pixels)()
    flat = ours.flatten().sort().values
    assert flat.shape == theirs["pixel_values"].flatten().shape
    most = 0.05 if model.in_transformers else 1 / 255  # authors' layouts have Pillow's pixels: a level or two more
    assert (flat - theirs["pixel_values"].flatten().sort().values).abs().max() < most


def test_the_status_says_whether_a_family_is_slower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preprocess, "SIZES", {"icon": (30, 20)})
    status = preprocess.main(["--only", "llava", "internvl", "--seconds", "0"])
    *records, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["family"], record["picture"]) for record in records] == [("llava", "icon"), ("internvl", "icon")]
    assert all(record[f"{way}_per_s"] > 0 for record in records for way in ("ours", "on_gpu", "transformers"))
    assert not {MODELS[name].architecture for name in MODELS} & set(summary["not_measured"])
    assert summary["least_ratio"] == min(record["ratio"] for record in records)
    assert status == (summary["least_ratio"] < 1) == bool(summary["slower"])
