"""Videos of Qwen3-VL and GLM-4.1V: their sizes and times against the published processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_contract import VIDEO, Loaded, build, draw_media, edit_json, load_family, plan, render
from pairs import num_examples
from processing import process

from seesay.errors import RequestError
from seesay.values import MediaSize

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


def make_size(num_frames: int, height: int, width: int) -> MediaSize:
    times = tuple(i / 2 for i in range(num_frames))
    return MediaSize(num_frames=num_frames, height=height, width=width, timestamps_s=times)


@pytest.mark.parametrize(("name", "is_capped"), [("qwen3_vl", False), ("qwen3_vl", True), ("glm4v", False)])
def test_sizes_equal_the_processors(
    name: str, is_capped: bool, load: Callable[[str], Loaded], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def cap(settings: dict[str, Any]) -> None:
        settings["video_processor"] |= {"cap_pixels_per_frame": is_capped, "max_video_tokens": 20}

    family, _ = load_family(edit_json(tiny_checkpoint(name), tmp_path / "q", "processor_config.json", cap))
    processor = load(name).processor.video_processor
    rng = np.random.default_rng(2)
    num_refused = 0
    for _ in range(num_examples(5000)):
        num_frames = int(rng.integers(2, 70))
        height, width = (int(side) for side in np.exp(rng.uniform(0, np.log(2000), 2)))
        options = {"cap_pixels_per_frame": is_capped}
        processor.max_video_tokens = 20
        try:
            expected = processor.get_num_of_video_patches(num_frames, height, width, options)
        except ValueError:
            num_refused += 1
            with pytest.raises(RequestError, match=f" {width}x{height} pixels .* longer than wide"):
                plan(family, VIDEO, make_size(num_frames, height, width))
            continue
        assert plan(family, VIDEO, make_size(num_frames, height, width)).num_units == expected
    assert 0 < num_refused < 1000


@pytest.mark.parametrize("name", ["qwen3_vl", "glm4v", "glm46v"])
def test_times_equal_the_processors(name: str, load: Callable[[str], Loaded]) -> None:
    """Of an odd number of frames at odd times, with text directly before them."""
    loaded = load(name)
    for indices, fps in (([0, 7, 14, 22, 3600], 29.97), ([0, 15], 30.0), ([0, 9, 12, 40], 30.0), (list(range(9)), 0.7)):
        video = draw_media(VIDEO, len(indices), 20, 30)
        video = replace(video, timestamps_s=tuple(index / fps for index in indices))
        metadata = {"fps": fps, "total_num_frames": 4000, "frames_indices": list(indices)}
        text = render(loaded.family, [video]).text
        inputs = process(loaded.processor, text, videos=[video.frames], video_metadata=[metadata])
        made = build(loaded, [video])
        assert made.token_ids.tolist() == inputs["input_ids"][0].tolist()
        for key in ("pixel_values_videos", "video_metadata"):
            inputs.pop(key, None)
        expected, delta = loaded.model.model.get_rope_index(**inputs)
        np.testing.assert_array_equal(made.positions, expected[:, 0].numpy())
        assert made.next_position == len(made.token_ids) + int(delta[0, 0])


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"max_pixels": 1000}, 1000 * 6),
        ({"total_pixels": 2000}, 2000),
        ({"total_pixels": 9000, "max_pixels": 900}, 5400),
    ],
)
def test_limits_of_a_frame_and_of_all(options: dict[str, int], most: int, load: Callable[[str], Loaded]) -> None:
    family = load("qwen3_vl").family
    height, width = plan(family, VIDEO, make_size(6, 90, 80), options).measures["resized"]
    assert 0.5 * most < height * width * 6 <= most


def test_more_pixels_than_a_video_has_by_itself(load: Callable[[str], Loaded]) -> None:
    family = load("qwen3_vl").family
    size = make_size(6, 30, 40)
    height, width = plan(family, VIDEO, size, {"min_pixels": 4000}).measures["resized"]
    assert height * width >= 4000
    with pytest.raises(RequestError, match="min_pixels=4000 of 6 frames is above the 20000 pixels"):
        plan(family, VIDEO, size, {"min_pixels": 4000, "total_pixels": 20_000})


@pytest.mark.parametrize("name", ["qwen3_vl", "glm4v"])
def test_a_video_of_one_frame_is_one_step(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    video = draw_media(VIDEO, 1, 30, 40)
    made = build(loaded, [video])
    assert made.items[0].features["grid"][0] == 1
    assert len(loaded.encoder.encode([made.items[0].features])[0]) == len(made.items[0].slots)
