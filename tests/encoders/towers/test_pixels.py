"""Frames processed by the tower's device against pixels processed on the host: the same vectors. On a GPU the tests run
as they are, elsewhere in Triton's interpreter: `kernels/test_interpreter.py` runs this file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from enrolment import ALL_VISION, ENROLLED
from family_contract import VIDEO, draw_image, draw_media, load_family, preprocess
from triton_cases import DEVICE, MARKS, ON_GPU, runs_here

from seesay.encoders import device_chain
from seesay.encoders.towers.layers import PixelNormalizer, cut_patches
from seesay.encoders.towers.pixels import PatchLoader
from seesay.encoders.towers.tiles import TileEncoder
from seesay.values import DecodedMedia
from seesay.vl.bases.float_pixels import FloatPixelsFamily
from seesay.vl.family import Family

STATISTICS: dict[str, Any] = {"mean": (0.481, 0.458, 0.408), "std": (0.269, 0.261, 0.276), "rescale_factor": 1 / 255}

pytestmark = MARKS


CHAINS = ("gemma3_vision", "minicpmv", "phi3_v", "smolvlm")
"""Families whose chains have, together, all kinds of steps: crops; a picture in two sizes, split; padding and turns;
tiles that are resized again, videos."""


def preprocess_all(family: Family, media: list[DecodedMedia], *, on_device: bool) -> list[Any]:
    family.resizes_on_device = on_device
    crops = {"do_pan_and_scan": True} if "do_pan_and_scan" in family.switches else {}
    made = [preprocess(family, item, crops) for item in media]
    assert all(("frames" in item, "pixels" in item) == (on_device, not on_device) for item in made)
    return made


def draw_all(family: Family) -> list[DecodedMedia]:
    """Pictures that are cut and padded in each direction, one that is smaller than a tile, and a video."""
    media = [draw_image(33, 90), draw_image(12, 14), draw_image(50, 24)]
    return [*media, draw_media(VIDEO, 3, 20, 30)] if VIDEO in family.modalities else media


FLOATS = [name for name in ALL_VISION if issubclass(ENROLLED[name], FloatPixelsFamily) or name.startswith("molmo")]
"""Their pixels are floats, which are made on the host alone."""
OTHERS = [name for name in ALL_VISION if name not in (*CHAINS, *FLOATS)]


@runs_here
@pytest.mark.parametrize("name", [*CHAINS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_frames_give_what_pixels_give(tiny_checkpoint: Callable[[str], Path], name: str) -> None:
    """Bit for bit, in every family: tiles, and vectors of all of them in one call."""
    family, _ = load_family(tiny_checkpoint(name))
    encoder: Any = family.build_encoder(DEVICE, torch.float32)
    media = draw_all(family)
    sent, cut = (preprocess_all(family, media, on_device=on_device) for on_device in (True, False))
    assert torch.equal(encoder.load_pixels(*sent), encoder.load_pixels(*cut))
    if hasattr(encoder, "load_high_pixels"):
        assert torch.equal(encoder.load_high_pixels(*sent), encoder.load_high_pixels(*cut))
    both = [sent[1], cut[0], *cut[2:]]  # the smallest, beside others that the host has cut
    assert torch.equal(encoder.load_pixels(*both), encoder.load_pixels(cut[1], cut[0], *cut[2:]))
    if isinstance(encoder, TileEncoder) and not any("joined" in item for item in cut):
        loader = encoder._loader
        height, width = loader._seen_size
        tiles = encoder.load_pixels(cut[1])[:, :height, :width]
        patches = cut_patches(tiles, loader._patch_size)
        if "boxes" not in sent[1]:
            assert torch.equal(loader._loader([sent[1]]), patches.flatten(0, 1))
        if ON_GPU:  # elsewhere its patches are cut out of these tiles
            assert torch.equal(loader.load_patches([sent[1]]), patches)
    if ON_GPU:
        for mine, other in zip(encoder.encode(sent), encoder.encode(cut), strict=True):
            assert torch.equal(mine, other)


@runs_here
def test_tiles_of_floats_are_normalized_on_the_device(tiny_checkpoint: Callable[[str], Path]) -> None:
    """They are no levels, of which kernels have a table."""
    family, _ = load_family(tiny_checkpoint("cogvlm2_video"))
    encoder: Any = family.build_encoder(DEVICE, torch.float32)
    items = [preprocess(family, item) for item in draw_all(family)]
    tiles = encoder.load_pixels(*items)
    assert (255 * tiles).round().sub(255 * tiles).abs().max() > 0.1
    assert torch.equal(encoder._loader.load_patches(items), cut_patches(tiles, encoder._loader._patch_size))
    assert len(encoder.encode(items)) == len(items)


@runs_here
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
def test_videos_are_processed_in_parts(
    tiny_checkpoint: Callable[[str], Path], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures that are enlarged, shrunk, stretched along one side, and as they are, too."""
    monkeypatch.setattr(device_chain, "PIXELS_AT_ONCE", 5000)
    family, _ = load_family(tiny_checkpoint("qwen2_5_vl"))
    media = [
        draw_image(20, 40),
        draw_media(VIDEO, 5, 24, 36),
        draw_image(60, 80),
        draw_image(28, 28),
        draw_image(8, 150),
        draw_media(VIDEO, 4, 20, 20),
    ]
    sent, cut = (preprocess_all(family, media, on_device=on_device) for on_device in (True, False))
    for theirs, ours in zip(cut, sent, strict=True):
        assert {name: theirs[name] for name in ours if name in theirs} == {k: v for k, v in ours.items() if k in theirs}
    load = PatchLoader(PixelNormalizer(**STATISTICS), device=DEVICE, dtype=dtype)
    both = load([sent[0], cut[1], *sent[2:]])
    assert both.dtype == dtype and torch.equal(both, load(cut)) and torch.equal(load(sent), both)


def test_the_largest_input_is_as_large_on_both_ways(tiny_checkpoint: Callable[[str], Path]) -> None:
    """On a GPU with the largest frame that it resizes."""
    family, _ = load_family(tiny_checkpoint("qwen2_5_vl"))
    on_host = family.largest_input()
    family.resizes_on_device = True
    on_device = family.largest_input()
    assert on_host is not None and on_device is not None
    assert on_host["grid"] == on_device["grid"]
    assert 0.8 * (1 << 24) < on_device["frames"].size / 3 <= 1 << 24


def test_larger_pictures_are_processed_on_the_host(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that are larger between two steps, or whose filters would be long."""
    family, _ = load_family(tiny_checkpoint("internvl"))
    family.resizes_on_device = True
    monkeypatch.setattr("seesay.vl.family.MAX_DEVICE_PIXELS", 60 * 60)
    assert "frames" in preprocess(family, draw_image(60, 60))
    assert "pixels" in preprocess(family, draw_image(60, 61))
    assert "pixels" in preprocess(family, draw_image(900, 4))
    monkeypatch.setattr("seesay.vl.family.MAX_DEVICE_SIDE", 59)
    assert "pixels" in preprocess(family, draw_image(60, 30))
