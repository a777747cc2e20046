"""Llama 4's canvases are those of the published processor, for any size; settings that do not fit are named."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import edit_json, load_family
from transformers.models.llama4 import image_processing_llama4 as published

from seesay.errors import CheckpointError
from seesay.vl.families.llama4 import _fit, _pick_canvas


def find_published(own: tuple[int, int], max_tiles: int, side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tiles of the canvas, and the size of the picture on it."""
    size = published.SizeDict(height=side, width=side)
    canvases = torch.tensor(published.find_supported_resolutions(max_num_chunks=max_tiles, patch_size=size))
    canvas = published.get_best_fit(own, canvases)
    limits = tuple(min(max(length, side), full) for length, full in zip(own, canvas, strict=True))
    fitted = published.get_max_res_without_distortion(own, limits)
    return tuple(int(n) // side for n in canvas), tuple(max(int(n), 1) for n in fitted)


@pytest.mark.parametrize("seed", range(6))
def test_canvases_and_sizes_are_the_published_ones(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        side, max_tiles = chance.choice((16, 336)), chance.randint(1, 16)
        longest = chance.choice((side, 4 * side, 40 * side))
        own = chance.randint(1, longest), chance.randint(1, longest)
        cut = _pick_canvas(own, max_tiles, side)
        found = cut, _fit(own, (cut[0] * side, cut[1] * side), side)
        assert found == find_published(own, max_tiles, side), (own, max_tiles, side)


@pytest.mark.parametrize(
    ("file", "settings", "told"),
    [
        ("processor_config.json", {"size": {"height": 12, "width": 12}}, "size .* is not the tower's"),
        ("processor_config.json", {"max_patches": 0}, "max_patches must be an integer from 1 to"),
        ("processor_config.json", {"resize_to_max_canvas": True}, "resize_to_max_canvas must be false"),
        ("vision_config", {"pixel_shuffle_ratio": 0.3}, "pixel_shuffle_ratio=0.3 does not divide"),
        ("text_config", {"num_experts_per_tok": 2}, "num_experts_per_tok=2 is not supported"),
        ("text_config", {"attention_chunk_size": None}, "attention_chunk_size is None"),
        (
            "text_config",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type='yarn' is not supported in a Llama 4",
        ),
    ],
)
def test_what_is_not_supported_is_named(
    file: str, settings: dict[str, Any], told: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def apply(data: dict[str, Any]) -> None:
        data["image_processor" if file == "processor_config.json" else file].update(settings)

    name = file if file.endswith(".json") else "config.json"
    folder = edit_json(tiny_checkpoint("llama4"), tmp_path / "model", name, apply)
    with pytest.raises(CheckpointError, match=told):
        load_family(folder)[0].backbone().decoder_config(session_len=64)
