"""Nemotron 3 Nano Omni: sizes of pictures, options, files and audio that are refused, and names of tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, make_picture, parse
from family_contract import IMAGE, VIDEO, Loaded, draw_image, draw_media, edit_json, load_family, plan, preprocess
from safetensors.torch import load_file, save_file

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, RequestError
from seesay.values import MediaSize
from seesay.vl.families.nemotron_h_omni import NemotronOmni, find_grid
from seesay.vl.family import MAX_UNITS

NAME = "nemotron_h_omni"
CPU = torch.device("cpu")


def of_published_sizes(least: int = 1024, most: int = 13312) -> NemotronOmni:
    """The arithmetic of the published model, without its files."""
    family = NemotronOmni.__new__(NemotronOmni)
    family._least, family._most, family._patch = least, most, 16
    return family


def size_of(height: int, width: int) -> MediaSize:
    return MediaSize(num_frames=1, height=height, width=width)


@pytest.mark.parametrize("limits", [(1024, 13312), (4, 4), (16, 16), (1024, 1024), (1, 7), (100, 99_999)])
def test_patches_are_those_of_transformers(limits: tuple[int, int]) -> None:
    from transformers.models.nemotron_h_omni.image_processing_nemotron_h_omni import get_patch_grid_size

    sides = [16 * number + more for number in (*range(1, 40, 7), 100, 300) for more in (-15, -1, 0, 1)]
    for size in itertools.product(sides, sides):
        try:
            expected = get_patch_grid_size(*size, 16, 2, *limits)
        except ZeroDivisionError:
            expected = (0, 0)
        found = find_grid(size, 16, least=limits[0], most=limits[1])
        assert found == (expected if all(expected) else None), size


@pytest.mark.parametrize("size", [(1, 16 * 40_000), (16 * 40_000, 16), (16, 10**9)])
def test_pictures_that_are_too_thin(size: tuple[int, int]) -> None:
    """Transformers divides by zero for them, or makes patches of no pixels."""
    with pytest.raises(RequestError, match=r"has a side of no patch when it is shrunk to 13312 patches .* crop or pad"):
        of_published_sizes().measure(IMAGE, size_of(*size), {})


@pytest.mark.parametrize("limits", [(1024, 13312), (1, 4), (1, 7), (16, 256), (1024, MAX_UNITS)])
def test_no_picture_has_more_patches_than_the_largest(limits: tuple[int, int]) -> None:
    family, limit = of_published_sizes(*limits), limits[1]
    long = [16 * max(1, limit // rows) + more for rows in (1, 2, 3, 5) for more in (-17, -16, -1, 0, 1, 16)]
    edges = [side for side in (*range(1, 700, 39), *long) if side > 0]
    grids = [find_grid(size, 16, least=limits[0], most=limit) for size in itertools.product(edges, edges)]
    most = family.num_units(family.measure(IMAGE, size_of(*family.largest_size()), {}))
    assert min(max(math.prod(grid) for grid in grids if grid is not None), MAX_UNITS) <= most <= MAX_UNITS


def test_most_pixels_of_one_picture(load: Callable[[str], Loaded]) -> None:
    family, picture = load(NAME).family, draw_image(60, 64)
    grids = [preprocess(family, picture, {"max_pixels": most})["grid"] for most in (1, 1600, 1 << 20)]
    assert grids == [(1, 2, 2), (1, 10, 10), (1, 16, 16)]
    detail = preprocess(family, draw_image(60, 64), family.resolve_options(IMAGE, {"detail": "low"}))
    assert detail["grid"] == (1, 16, 16)  # fewer pixels than low detail allows
    assert plan(family, IMAGE, picture.size, {"max_pixels": 1600}).expansion.takes_embedding.sum() == 25


def test_pixels_keep_what_interpolation_overshoots(load: Callable[[str], Loaded]) -> None:
    """Transformers resizes in float32, and neither rounds nor clamps."""
    picture = draw_image(60, 64)
    edges = replace(picture, frames=(picture.frames > 127).astype("uint8") * 255)
    pixels = preprocess(load(NAME).family, edges)["pixels"]
    assert pixels.dtype == "float32" and pixels.min() < 0 and pixels.max() > 255
    assert plan(load(NAME).family, IMAGE, picture.size).peak_pixels >= 4 * 64 * 64


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("image_processor", {"resample": 1}, "processor setting resample must be 2 .bilinear. or 3 .bicubic., got 1"),
        ("image_processor", {"patch_size": 8}, "processor setting patch_size must be 4, got 8"),
        ("image_processor", {"downsample_ratio": 0.25}, "processor setting downsample_ratio must be 0.5, got 0.25"),
        ("image_processor", {"min_num_patches": 0}, "min_num_patches must be an integer from 1 to"),
        ("image_processor", {"max_num_patches": -1}, "max_num_patches must be an integer from 1 to"),
        ("image_processor", {"max_model_len": "long"}, "max_model_len must be an integer from 1 to"),
        ("config", {"downsample_ratio": 1.0}, "downsample_ratio must be 0.5, got 1.0"),
    ],
)
def test_other_settings_are_refused(
    file: str, change: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def apply(data: dict[str, Any]) -> None:
        data.get(file, data).update(change)

    name = "config.json" if file == "config" else "processor_config.json"
    path = edit_json(tiny_checkpoint(NAME), tmp_path / "changed", name, apply)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_without_a_cap_the_context_limits_patches(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def apply(data: dict[str, Any]) -> None:
        data["image_processor"].update(max_num_patches=0, max_model_len=104)

    family, _ = load_family(edit_json(tiny_checkpoint(NAME), tmp_path / "changed", "processor_config.json", apply))
    assert plan(family, IMAGE, size_of(400, 400)).num_units == 400


def test_a_gated_tower_is_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def apply(data: dict[str, Any]) -> None:
        data["vision_config"]["use_swiglu_ffn"] = True

    family, _ = load_family(edit_json(tiny_checkpoint(NAME), tmp_path / "changed", "config.json", apply))
    with pytest.raises(CheckpointError, match=r"vision_config\.use_swiglu_ffn=True is not supported"):
        family.build_encoder(CPU, torch.float32)


@pytest.mark.parametrize("change", [{"model": "vit_giant_patch14_224"}, {"register_multiple": 16}])
def test_the_authors_other_towers_are_refused(
    change: dict[str, Any], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def apply(data: dict[str, Any]) -> None:
        data["vision_config"]["args"].update(change)

    path = edit_json(tiny_checkpoint("nemotron_h_omni_original"), tmp_path / "changed", "config.json", apply)
    with pytest.raises(CheckpointError, match=rf"vision_config.args.{next(iter(change))} must be"):
        load_family(path)


def test_audio_is_refused_by_name(tiny_checkpoint: Callable[[str], Path]) -> None:
    audio = {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}}
    message = {"role": "user", "content": [audio, {"type": "text", "text": "what?"}]}
    with AsyncEngine(str(tiny_checkpoint(NAME)), backend_config=EngineConfig(device_type="cpu")) as engine:
        refused, picture = ask(engine, parse([[message], ("what?", make_picture(9, 9, 1))], max_new_tokens=2))
    assert "this model takes no audio input (it takes: image, video)" in str(refused.error)
    assert picture.error is None


def test_the_tower_under_the_names_of_the_modules(
    load: Callable[[str], Loaded], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As `save_pretrained(save_original_format=False)` writes it, with queries, keys and values one by one."""
    loaded, path = load(NAME), tmp_path / "modules"
    loaded.model.save_pretrained(path, save_original_format=False)
    for file in tiny_checkpoint(NAME).iterdir():
        if not file.name.startswith("model") and file.name != "config.json":
            (path / file.name).write_bytes(file.read_bytes())
    assert any(".attention.q_proj." in name for name in load_file(path / "model.safetensors"))
    family, _ = load_family(path)
    encoder = family.build_encoder(CPU, torch.float32)
    for media in (draw_image(40, 57), draw_media(VIDEO, 3, 40, 57)):
        features = preprocess(family, media)
        torch.testing.assert_close(encoder.encode([features]), loaded.encoder.encode([features]), rtol=0, atol=0)


def test_a_tower_without_a_tensor_is_refused_by_name(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = edit_json(tiny_checkpoint(NAME), tmp_path / "damaged", "config.json", lambda data: None)
    state = load_file(path / "model.safetensors")
    del state["vision_model.radio_model.model.patch_generator.cls_token.token"]
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    family, _ = load_family(path)
    with pytest.raises(CheckpointError, match=r"prefix\.weight|cls_token"):
        family.build_encoder(CPU, torch.float32)
