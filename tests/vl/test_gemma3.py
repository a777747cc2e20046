"""Gemma 3's crops (pan and scan), and the texts around its pictures, beside Transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import ask, make_picture, parse
from family_contract import IMAGE, Loaded, build, draw_image, list_pixels, load_family, preprocess
from PIL import Image

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import RequestError
from seesay.values import MediaPart, MediaSize, RenderedPrompt
from seesay.vl.prompts.prompt import tokenize

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]
CROPS: dict[str, Any] = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 10}


@pytest.fixture
def gemma(load: Callable[[str], Loaded]) -> Loaded:
    return load("gemma3_vision")


def run_with_crops(loaded: Loaded, size: tuple[int, int], options: dict[str, Any]) -> Any:
    """What Transformers' processor makes of `build`'s prompt with one picture."""
    theirs = {
        "pan_and_scan_max_num_crops": 4,
        "pan_and_scan_min_ratio_to_activate": 1.2,
        "pan_and_scan_min_crop_size": 10,
        **options,
    }
    text = f"the {loaded.family.markers[IMAGE]} in 12\n<|im_end|>"
    picture = Image.fromarray(draw_image(*size).frames[0])
    return loaded.processor(text=[text], images=[picture], return_tensors="pt", **theirs)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((20, 90), CROPS),
        ((90, 20), CROPS),
        ((33, 70), CROPS),
        ((33, 70), {**CROPS, "pan_and_scan_max_num_crops": 1}),
        ((31, 131), {**CROPS, "pan_and_scan_max_num_crops": 3}),
        ((40, 44), CROPS),
        ((40, 44), {**CROPS, "pan_and_scan_min_ratio_to_activate": 1.05}),
        ((30, 40), {**CROPS, "pan_and_scan_min_crop_size": 25}),
        ((64, 64), CROPS),
    ],
)
def test_crops_equal_the_processors(gemma: Loaded, size: tuple[int, int], options: dict[str, Any]) -> None:
    theirs = run_with_crops(gemma, size, options)
    made = build(gemma, [draw_image(*size)], options)
    assert made.token_ids.tolist() == theirs["input_ids"][0].tolist()
    [item] = made.items
    seen_together = np.zeros(len(made.token_ids), dtype=np.int64)
    seen_together[item.slots] = 1
    assert seen_together.tolist() == theirs["token_type_ids"][0].tolist()
    for ours, other in zip(gemma.encoder.load_pixels(item.features), list_pixels(theirs["pixel_values"]), strict=True):
        assert (ours - other).abs().max() < 1e-5
    with torch.no_grad():
        expected = gemma.model.get_image_features(theirs["pixel_values"]).pooler_output.flatten(0, 1)
    [rows] = gemma.encoder.encode([item.features])
    assert (rows - expected).abs().max() < 1e-4


def test_detail_low_makes_no_crops(gemma: Loaded) -> None:
    assert len(preprocess(gemma.family, draw_image(20, 90), CROPS)["pixels"]) == 5
    assert len(preprocess(gemma.family, draw_image(20, 90), {**CROPS, "detail": "low"})["pixels"]) == 1
    with pytest.raises(RequestError, match="one of them empty"):
        preprocess(gemma.family, draw_image(1, 5), {**CROPS, "pan_and_scan_min_crop_size": 1})


def test_a_checkpoint_may_make_crops_of_every_picture(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from family_contract import edit_json

    def turn_on(settings: dict[str, Any]) -> None:
        settings["image_processor"]["do_pan_and_scan"] = True

    path = edit_json(tiny_checkpoint("gemma3_vision"), tmp_path / "crops", "processor_config.json", turn_on)
    family, _ = load_family(path)
    assert len(preprocess(family, draw_image(20, 90))["pixels"]) == 5
    assert len(preprocess(family, draw_image(20, 90), {"do_pan_and_scan": False})["pixels"]) == 1
    largest = family.largest_input()
    assert largest is not None and largest["num_tiles"] == 5


def test_what_a_user_types_beside_a_picture_stays_text(gemma: Loaded) -> None:
    """Also when texts around the picture move it."""
    family, tokenizer = gemma.family, gemma.tokenizer
    typed, marker = "<end_of_image>", family.markers[IMAGE]
    text = f"{typed}a\n{marker}{typed} b"
    at = text.index(marker)
    literals = ((0, len(typed)), (at + len(marker), at + len(marker) + len(typed)))
    rendered = RenderedPrompt(
        text=text,
        media=(MediaPart(modality=IMAGE, source=None),),
        markers=((at, at + len(marker)),),
        literals=literals,
    )
    planned = family.plan_media(IMAGE, MediaSize(num_frames=1, height=20, width=90), {**CROPS})
    ids = tokenize(rendered, tokenizer, [planned.wording]).token_ids.tolist()
    assert tokenizer.token_id(typed) not in ids
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    assert whole == f"<s>{typed}a\nHere is the original image \n\n{marker}\n\n{typed} b"


def test_crops_are_counted_and_answered(tiny_checkpoint: Callable[[str], Path]) -> None:
    """In chunks that are shorter than a picture's rows, with what was counted before."""
    picture = make_picture(90, 20, 1)
    parts = [{"type": "image", "image": picture, **options} for options in ({}, CROPS)]
    prompts = [[{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}] for part in parts]
    answers = []
    for chunk in (5, 512):
        config = EngineConfig(device_type="cpu", block_size=4, max_prefill_token_num=chunk)
        with AsyncEngine(str(tiny_checkpoint("gemma3_vision")), backend_config=config) as engine:
            requests = parse(prompts, max_new_tokens=8, ignore_eos=True)
            outputs = ask(engine, requests)
            assert [output.error for output in outputs] == [None, None]
            assert [engine.count_tokens(request) for request in requests] == [o.input_token_len for o in outputs]
            answers.append([list(output.token_ids) for output in outputs])
    assert answers[0] == answers[1]


def test_the_published_settings_have_nulls(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from family_contract import edit_json

    def empty(settings: dict[str, Any]) -> None:
        nulls = {name: None for name in settings["image_processor"] if "pan_and_scan" in name}
        settings["image_processor"] |= nulls

    path = edit_json(tiny_checkpoint("gemma3_vision"), tmp_path / "nulls", "processor_config.json", empty)
    assert "null" in json.dumps(json.loads((path / "processor_config.json").read_text())["image_processor"])
    family, _ = load_family(path)
    size = MediaSize(num_frames=1, height=300, width=1000)
    assert family.plan_media(IMAGE, size, {}).measures["num_tiles"] == 1
    assert family.plan_media(IMAGE, size, {"do_pan_and_scan": True}).measures["num_tiles"] == 4
