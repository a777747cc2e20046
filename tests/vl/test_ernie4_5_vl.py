"""What ERNIE-4.5-VL has of its own. The contract and tests/engine/test_golden.py compare it with Transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ernie_checkpoints import FONT
from family_contract import VIDEO, Loaded, edit_json, load_family

from seesay.contract.items import draw_media
from seesay.errors import CheckpointError
from seesay.processors.media.draw_times import draw_times, spell_time
from seesay.vl.families.ernie4_5_vl import ErnieVL


@pytest.mark.parametrize(
    ("time_s", "expected"), [(0, "time: 00:00:00.00"), (61.5, "time: 00:01:01.50"), (7322.126, "time: 02:02:02.13")]
)
def test_times_are_spelled_with_hours(time_s: float, expected: str) -> None:
    assert spell_time(time_s) == expected


def test_times_are_drawn_into_copies_of_frames(tiny_checkpoint: Callable[[str], Path]) -> None:
    font = (tiny_checkpoint("ernie4_5_vl") / FONT).read_bytes()
    frames = np.full((2, 40, 60, 3), 128, dtype=np.uint8)
    drawn = draw_times(frames, (0.0, 1.0), font)
    assert (frames == 128).all()
    assert (drawn[0] != drawn[1]).any(), "each frame has its own time"
    assert (drawn != 128).any(axis=(0, 3)).nonzero()[0].max() < 10, "letters are a tenth of a frame's height"
    small = frames[:, :9]
    assert draw_times(small, (0.0, 1.0), font) is small


def test_experts_behind_those_of_text_are_of_media(load: Callable[[str], Loaded]) -> None:
    find = load("ernie4_5_vl").family.weights.decoder_name
    stem = "model.layers.1.mlp"
    names = {
        f"{stem}.experts.3.up_proj.weight": "mlp.experts.3",
        f"{stem}.experts.4.up_proj.weight": "media.mlp.experts.0",
    }
    assert {
        name: (find(name) or "").removeprefix("layers.1.").removesuffix(".up_proj.weight") for name in names
    } == names
    assert find(f"{stem}.gate.weight_1") == "layers.1.media.mlp.gate.weight"


def test_height_and_width_alternate(load: Callable[[str], Loaded]) -> None:
    [rotary] = load("ernie4_5_vl").family.backbone().decoder_config(session_len=64).rotaries
    assert rotary.section_of_component().tolist() == [1, 2, 1, 2, 1, 2, 0, 0] * 2


def test_an_odd_number_of_frames_ends_with_the_last_one_twice(load: Callable[[str], Loaded]) -> None:
    family = load("ernie4_5_vl").family
    assert isinstance(family, ErnieVL)
    clip = draw_media(VIDEO, 3, 24, 32)
    plan = family.plan_media(VIDEO, clip.size, {})
    pixels = family.preprocess(clip, plan.measures)["pixels"]
    frames = pixels.reshape(plan.measures["grid"][0], -1)
    assert len(frames) == 4
    assert (frames[2] == frames[3]).all()
    assert plan.expansion.takes_embedding.sum() * 2 * family.merge_size**2 == plan.num_units


def _set(section: str, name: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data[section][name] = value

    return change


@pytest.mark.parametrize(
    ("file", "section", "name", "value", "message"),
    [
        ("config.json", "vision_config", "temporal_merge_size", 3, "temporal_merge_size=3 is not supported"),
        ("processor_config.json", "video_processor", "temporal_patch_size", 3, "temporal_patch_size must be 2, got 3"),
        ("processor_config.json", "video_processor", "font", "../a.ttf", "font must be the name of a .ttf file"),
        ("processor_config.json", "video_processor", "font", "other.ttf", "the font .* cannot be read"),
        ("processor_config.json", "video_processor", "max_frames", 0, "max_frames must be an integer"),
        ("processor_config.json", "video_processor", "min_frames", 500, "min_frames must be an integer from 1 to 180"),
    ],
)
def test_settings_are_refused_by_name(
    file: str,
    section: str,
    name: str,
    value: object,
    message: str,
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    path = edit_json(tiny_checkpoint("ernie4_5_vl"), tmp_path / "changed", file, _set(section, name, value))
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_a_file_that_is_no_font_is_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    change = _set("video_processor", "font", "none.ttf")
    path = edit_json(tiny_checkpoint("ernie4_5_vl"), tmp_path / "changed", "processor_config.json", change)
    (path / "none.ttf").write_bytes(b"no font")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_family(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("moe_intermediate_size", [32], "must be two positive integers"),
        ("moe_intermediate_size", [32, 0], "must be two positive integers"),
        ("use_bias", True, "use_bias=True is not supported"),
        (
            "rope_parameters",
            {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
            "must be equal here",
        ),
    ],
)
def test_decoders_are_refused_by_name(
    name: str, value: object, message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = edit_json(
        tiny_checkpoint("ernie4_5_vl"), tmp_path / "changed", "config.json", _set("text_config", name, value)
    )
    family, _ = load_family(path)
    with pytest.raises(CheckpointError, match=message):
        family.backbone().decoder_config(session_len=64)
