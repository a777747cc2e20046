"""Positions of several axes against Transformers' `get_rope_index`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from enrolment import ENROLLED, MROPE_FAMILIES, VIDEO_FAMILIES
from family_contract import IMAGE, VIDEO, Loaded, build, draw_image, draw_media, render, run_processor

from seesay.values import DecodedMedia, MediaItem
from seesay.vl.bases.timed_videos import TimedVideoFamily

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]


MROPE_VIDEO_FAMILIES = [name for name in MROPE_FAMILIES if name in VIDEO_FAMILIES]


def truncates_seconds(loaded: Loaded) -> bool:
    """Whether this transformers cuts the seconds per grid to whole ones first (a mistake of 5.17, mended since)."""
    positions, _ = loaded.model.model.get_rope_index(
        torch.zeros(1, 2, dtype=torch.long),
        mm_token_type_ids=torch.full((1, 2), 2),
        video_grid_thw=torch.tensor([[2, 2, 2]]),
        second_per_grid_ts=torch.tensor([1.5]),
    )
    return bool(positions[0].max() == 2)


@pytest.mark.parametrize("name", MROPE_FAMILIES)
@pytest.mark.parametrize("seed", range(40))
def test_positions_equal_get_rope_index(name: str, seed: int, load: Callable[[str], Loaded]) -> None:
    """Random prompts whose text is full of literal image tokens, which must change nothing."""
    loaded = load(name)
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    types: list[int] = []
    grids: dict[int, list[tuple[int, int, int]]] = {1: [], 2: []}
    items, seconds = [], []
    vocabulary = [3, 5, loaded.model.config.image_token_id, loaded.model.config.video_token_id]

    def add_text(count: int) -> None:
        ids.extend(rng.choice(vocabulary, count).tolist())
        types.extend([0] * count)

    for _ in range(rng.integers(0, 6)):
        add_text(int(rng.integers(1, 9)))
        kind = int(rng.integers(1, 3)) if name in VIDEO_FAMILIES else 1
        merged = getattr(loaded.model.config.vision_config, "temporal_merge_size", 1) if kind == 2 else 1
        frames = merged * int(rng.integers(1, 9)) if kind == 2 else 1
        grid = (frames, 2 * int(rng.integers(1, 7)), 2 * int(rng.integers(1, 7)))
        features: dict[str, Any] = {"grid": grid}
        if kind == 2:
            times = [0.1, 0.2, 1 / 3, 0.5, 1.0, 1.2, 2.0, rng.random() * 3]
            features["seconds_per_grid"] = float(rng.choice([1.0, 2.0, 3.0] if truncates_seconds(loaded) else times))
            seconds.append(features["seconds_per_grid"])
        count = grid[0] * grid[1] * grid[2] // 4 // merged
        steps = grid[0] if issubclass(ENROLLED[name], TimedVideoFamily) else 1
        slots = np.arange(0)
        for step in range(steps):  # text may lie between them
            add_text(int(step > 0))
            slots = np.concatenate((slots, len(ids) + np.arange(count // steps)))
            ids.extend([vocabulary[1 + kind]] * (count // steps))
            types.extend([kind] * (count // steps))
        grids[kind].append(grid)
        modality = IMAGE if kind == 1 else VIDEO
        span = (int(slots[0]) - 1, int(slots[-1]) + 2)
        items.append(
            MediaItem(modality=modality, span=span, slots=slots, hash=bytes(32), features=features, num_units=count * 4)
        )
    add_text(int(rng.integers(1, 9)))
    expected, delta = loaded.model.model.get_rope_index(
        torch.tensor([ids]),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor(grids[1]) if grids[1] else None,
        video_grid_thw=torch.tensor(grids[2]) if grids[2] else None,
        second_per_grid_ts=torch.tensor(seconds) if seconds else None,
    )
    positions, next_position = loaded.family.positions(np.array(ids), tuple(items))
    np.testing.assert_array_equal(positions, expected[:, 0].numpy())
    assert next_position == len(ids) + int(delta[0, 0])


@pytest.mark.parametrize("name", MROPE_VIDEO_FAMILIES)
def test_video_positions_equal_the_processors_and_models(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    media = [draw_media(VIDEO, 7, 50, 40), draw_image(40, 60), draw_media(VIDEO, 4, 30, 80)]
    inputs = run_processor(loaded, media)
    for key in ("pixel_values", "pixel_values_videos", "video_metadata"):
        inputs.pop(key, None)
    expected, delta = loaded.model.model.get_rope_index(**inputs)
    made = build(loaded, media)
    np.testing.assert_array_equal(made.positions, expected[:, 0].numpy())
    assert made.next_position == len(made.token_ids) + int(delta[0, 0])


@pytest.mark.parametrize("name", MROPE_VIDEO_FAMILIES)
def test_positions_of_a_sampled_video_equal_the_processors(name: str, load: Callable[[str], Loaded]) -> None:
    """20 frames of 10.3 s: the time between them is duration / 20, as the reference has it."""
    loaded = load(name)
    if truncates_seconds(loaded):
        pytest.skip("this transformers cuts the seconds per grid to whole ones")
    total, rate, count = 309, 30.0, 20
    indices = np.linspace(0, total - 1, count).round().astype(int)
    frames = draw_media(VIDEO, count, 30, 40).frames
    video = DecodedMedia(
        modality=VIDEO,
        frames=frames,
        timestamps_s=tuple(indices / rate),
        frame_interval_s=total / rate / count,
        digest=bytes(32),
    )
    inputs = loaded.processor(
        text=[render(loaded.family, [video]).text],
        videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
        video_metadata=[{"fps": rate, "total_num_frames": total, "frames_indices": indices.tolist()}],
        do_sample_frames=False,
        return_tensors="pt",
    )
    for key in ("pixel_values_videos", "video_metadata"):
        inputs.pop(key, None)
    expected, _ = loaded.model.model.get_rope_index(**inputs)
    np.testing.assert_array_equal(build(loaded, [video]).positions, expected[:, 0].numpy())
