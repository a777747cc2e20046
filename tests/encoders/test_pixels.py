"""Frames resized by the tower's device against pixels resized on the host: the same vectors. On a GPU the tests run as
they are, elsewhere in Triton's interpreter: `kernels/test_interpreter.py` runs this file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import VIDEO, draw_image, draw_media, load_family, preprocess
from triton_cases import DEVICE, MARKS, runs_here

from seesay.encoders import pixels
from seesay.encoders.layers import PixelNormalizer, cut_patches
from seesay.encoders.pixels import PatchLoader
from seesay.values import DecodedMedia
from seesay.vl.family import Family

STATISTICS: dict[str, Any] = {"mean": (0.481, 0.458, 0.408), "std": (0.269, 0.261, 0.276), "rescale_factor": 1 / 255}

pytestmark = MARKS


def preprocess_all(family: Family, media: list[DecodedMedia], *, on_device: bool) -> list[Any]:
    family.resizes_on_device = on_device
    return [preprocess(family, item) for item in media]


@runs_here
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
def test_frames_give_the_vectors_of_pixels(
    tiny_checkpoint: Callable[[str], Path], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: pictures that are enlarged, shrunk, stretched along one side, and as they are; videos in parts."""
    monkeypatch.setattr(pixels, "PIXELS_AT_ONCE", 5000)
    family, _ = load_family(tiny_checkpoint("qwen2_5_vl"))
    media = [
        draw_image(33, 70),
        draw_media(VIDEO, 5, 40, 60),
        draw_image(90, 120),
        draw_image(56, 56),
        draw_image(8, 300),
        draw_media(VIDEO, 4, 30, 30),
    ]
    sent, cut = (preprocess_all(family, media, on_device=on_device) for on_device in (True, False))
    assert all("frames" in item and "pixels" not in item for item in sent)
    for theirs, ours in zip(cut, sent, strict=True):
        assert {name: theirs[name] for name in ours if name in theirs} == {k: v for k, v in ours.items() if k in theirs}
    merge = family.checkpoint.hf_config().vision_config.spatial_merge_size
    load = PatchLoader(PixelNormalizer(**STATISTICS), group=(merge, merge), device=DEVICE, dtype=dtype)
    both = load([sent[0], cut[1], *sent[2:]])
    assert both.dtype == dtype and torch.equal(both, load(cut)) and torch.equal(load(sent), both)


@runs_here
def test_frames_give_the_vectors_of_tiles(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Pictures that are cut, with their thumbnails, and one that is not; the frames of a video."""
    family, _ = load_family(tiny_checkpoint("internvl"))
    vision = family.checkpoint.hf_config().vision_config
    media = [draw_image(33, 90), draw_image(12, 14), draw_media(VIDEO, 3, 30, 50), draw_image(120, 50)]
    sent, cut = (preprocess_all(family, media, on_device=on_device) for on_device in (True, False))
    assert [len(item["sizes"]) for item in sent] == [2, 1, 1, 2] and sent[0]["num_tiles"] > 2
    group = (vision.image_size[0] // vision.patch_size[0], vision.image_size[1] // vision.patch_size[1])
    normalizer = PixelNormalizer(**STATISTICS)
    load = PatchLoader(normalizer, group=group, device=DEVICE, dtype=torch.float32)
    tiles = torch.cat([torch.from_numpy(item["pixels"]) for item in cut])
    expected = cut_patches(normalizer(tiles, channel_dim=3), vision.patch_size).flatten(0, 1)
    assert torch.equal(load(sent).cpu(), expected)


def test_the_largest_input_is_as_large_on_both_ways(tiny_checkpoint: Callable[[str], Path]) -> None:
    """On a GPU with the largest frame that it resizes."""
    family, _ = load_family(tiny_checkpoint("qwen2_5_vl"))
    on_host = family.largest_input()
    family.resizes_on_device = True
    on_device = family.largest_input()
    assert on_host is not None and on_device is not None
    assert on_host["grid"] == on_device["grid"]
    assert 0.8 * (1 << 24) < on_device["frames"].size / 3 <= 1 << 24


def test_larger_pictures_and_other_filters_are_resized_on_the_host(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    family, _ = load_family(tiny_checkpoint("qwen2_5_vl"))
    family.resizes_on_device = True
    monkeypatch.setattr("seesay.vl.family.MAX_DEVICE_PIXELS", 50 * 50)
    assert "frames" in preprocess(family, draw_image(50, 50))
    assert "pixels" in preprocess(family, draw_image(50, 51))
    assert not family.may_send_frames(draw_image(9, 9).size, "lanczos")
