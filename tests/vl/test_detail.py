"""OpenAI's `detail`, in every family: 'low' never takes more tokens than 'high', whatever else is asked for."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask, make_picture, parse
from enrolment import FAMILIES
from family_contract import IMAGE, VIDEO, Loaded, edit_json, load_family, plan
from pairs import num_examples

from seesay.config import EngineConfig
from seesay.demo import CHECKPOINT
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import RequestError
from seesay.values import MediaSize, Modality
from seesay.vl.constants import LOW_DETAIL_PIXELS
from seesay.vl.family import Family

OPTIONS: Mapping[Modality, tuple[Mapping[str, Any], ...]] = {
    IMAGE: (
        {},
        {"max_pixels": 5000},
        {"max_pixels": 3_000_000},
        {"min_pixels": 20_000},
        {"min_pixels": 10_000, "max_pixels": 200_000},
        {"resized_height": 700, "resized_width": 900},
        {"max_dynamic_patch": 6},
        {"size": 900},
        {"min_dynamic_patch": 1, "max_dynamic_patch": 2},
    ),
    VIDEO: ({}, {"max_pixels": 5000}, {"max_pixels": 3_000_000}, {"min_pixels": 20_000}),
}


def count(family: Family, modality: Modality, size: MediaSize, options: Mapping[str, Any]) -> int:
    return plan(family, modality, size, options).num_tokens


def take_large_pictures(settings: dict[str, Any]) -> None:
    settings["image_processor"]["size"]["longest_edge"] = 4_000_000


def check_low_is_never_more(family: Family) -> None:
    rng = np.random.default_rng(3)
    sides = [1, 27, 28, 29, 511, 512, 513, 1025, 3000]
    sizes = [(h, w) for h in sides for w in sides if max(h, w) <= 200 * min(h, w)]
    sizes += [(int(h), int(w)) for h, w in np.exp(rng.uniform(np.log(40), np.log(4000), (num_examples(30), 2)))]
    for modality in family.modalities:
        known = family.options.get(modality, ())
        for options in OPTIONS[modality]:
            if not set(options) <= set(known):
                continue
            for height, width in sizes:
                times = () if modality is IMAGE else (0.0, 0.5, 1.0, 1.5)
                size = MediaSize(num_frames=len(times) or 1, height=height, width=width, timestamps_s=times)
                high = count(family, modality, size, {**options, "detail": "high"})
                low = count(family, modality, size, {**options, "detail": "low"})
                assert low <= high == count(family, modality, size, options), (modality, options, height, width)


@pytest.mark.parametrize("name", FAMILIES)
def test_low_is_never_more_than_high(name: str, load: Callable[[str], Loaded]) -> None:
    check_low_is_never_more(load(name).family)


def test_low_is_never_more_than_high_in_the_built_in_model() -> None:
    family = load_family(CHECKPOINT)[0]
    check_low_is_never_more(family)
    size = MediaSize(num_frames=1, height=1024, width=1024)
    low, high = (count(family, IMAGE, size, {"detail": detail}) for detail in ("low", "high"))
    assert low == high == 81 + 2  # rows, and the tokens around them


def test_a_large_picture_takes_fewer(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    size = MediaSize(num_frames=1, height=2000, width=1500)
    for name in ("qwen2_vl", "qwen2_5_vl"):
        path = edit_json(tiny_checkpoint(name), tmp_path / name, "processor_config.json", take_large_pictures)
        family = load_family(path)[0]
        height, width = plan(family, IMAGE, size, {"detail": "low"}).measures["resized"]
        assert 0.8 * LOW_DETAIL_PIXELS < height * width <= LOW_DETAIL_PIXELS
        assert count(family, IMAGE, size, {"detail": "low"}) < count(family, IMAGE, size, {})
    family = load_family(tiny_checkpoint("internvl"))[0]
    assert plan(family, IMAGE, size, {"detail": "low", "max_dynamic_patch": 9}).measures["num_tiles"] == 1
    assert count(family, IMAGE, size, {"detail": "low"}) < count(family, IMAGE, size, {})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("qwen2_5_vl", {"detail": "low", "min_pixels": 300_000}, "min_pixels=300000 is above the 262144 pixels"),
        ("internvl", {"detail": "low", "min_dynamic_patch": 2}, "min_dynamic_patch=2 is above the 1 tile"),
        ("llava", {"detail": "most"}, "detail must be auto, low, high, got 'most'"),
        ("llava", {"detail": "low", "max_pixels": 3}, "'max_pixels' is unknown to this model; known are: detail"),
    ],
)
def test_what_contradicts_is_refused(
    name: str, options: dict[str, Any], message: str, load: Callable[[str], Loaded]
) -> None:
    with pytest.raises(RequestError) as raised:
        load(name).family.resolve_options(IMAGE, options)
    assert message in raised.value.message


@pytest.mark.parametrize("name", FAMILIES)
def test_low_detail_is_answered(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """Through the whole stream, pictures and frames, with the tokens that were counted."""
    buffer = io.BytesIO()
    make_picture(120, 90, 1).save(buffer, "PNG")
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=config) as engine:
        prompts: list[Any] = []
        for detail in ("low", "high", "auto"):
            parts: list[Any] = [{"type": "image_url", "image_url": {"url": buffer.getvalue(), "detail": detail}}]
            if VIDEO in engine.family.modalities:
                frames = [make_picture(60, 80, seed) for seed in range(4)]
                parts.append({"type": "video", "video": frames, "detail": detail})
            prompts.append([{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}])
        requests = parse(prompts, max_new_tokens=1)
        low, high, auto = ask(engine, requests)
        assert [answer.error for answer in (low, high, auto)] == [None] * 3
        assert low.input_token_len <= high.input_token_len == auto.input_token_len
        assert [engine.count_tokens(request) for request in requests] == [
            answer.input_token_len for answer in (low, high, auto)
        ]
