"""Settings that a processor file leaves out are those of the processor's class in Transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from family_contract import draw_image, edit_json, load_family, preprocess

from seesay.errors import CheckpointError
from seesay.vl.bases.pixels import DEFAULTS, PixelSettings

NAMES = ("image_mean", "image_std", "resample")


BESIDE_WEIGHTS = (
    "CogVLMVideoProcessor",
    "DeepseekVLV2Processor",
    "KimiVLImageProcessor",
    "MiniCPMVImageProcessor",
    "MolmoImageProcessor",
    "NemotronH_Nano_Omni_Reasoning_V3ImageProcessor",
    "Phi3VImageProcessor",
    "QwenVLImageProcessor",
    "VLMImageProcessor",
    "XComposer2SquareProcessor",
    "XComposer2TileProcessor",
)
"""Classes that Transformers does not have."""


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name not in BESIDE_WEIGHTS])
def test_defaults_equal_the_class_of_transformers(name: str) -> None:
    import transformers

    (mean, std), resample = DEFAULTS[name]
    processor = getattr(transformers, name)
    assert tuple(processor.image_mean) == mean and tuple(processor.image_std) == std
    assert int(processor.resample) == resample


@pytest.mark.parametrize("suffix", ("", "Fast"))
def test_a_processor_that_is_named_decides(suffix: str) -> None:
    settings = {"image_processor_type": f"SiglipImageProcessor{suffix}"}
    found = PixelSettings.read(settings, "here", processor="CLIPImageProcessor")
    assert found.mean == found.std == (0.5, 0.5, 0.5) and found.resample == "bicubic"
    assert PixelSettings.read({}, "here", processor="CLIPImageProcessor").mean[0] == 0.48145466
    assert PixelSettings.read({}, "here", processor="Siglip2ImageProcessor").resample == "bilinear"


def test_what_an_unknown_processor_leaves_out_is_named() -> None:
    settings: dict[str, Any] = {"image_processor_type": "OwnProcessor", "image_std": [1, 1, 1], "resample": 2}
    with pytest.raises(CheckpointError, match="image_mean is missing, and the default of 'OwnProcessor' is not known"):
        PixelSettings.read(settings, "here", processor="CLIPImageProcessor")
    given = PixelSettings.read({**settings, "image_mean": [0, 0, 0]}, "here", processor="CLIPImageProcessor")
    assert given.std == (1.0, 1.0, 1.0)
    settings = {"image_processor_type": "OwnProcessor", "do_normalize": False, "resample": 3}
    assert PixelSettings.read(settings, "here", processor="CLIPImageProcessor").mean == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_resample_has_the_numbers_of_pillow(number: int) -> None:
    from PIL import Image

    found = PixelSettings.read({"resample": number}, "here", processor="CLIPImageProcessor").resample
    assert found == Image.Resampling(number).name.lower()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("image_std", [0, 0, 0], "three numbers from 1e-06 to 1e+06, got [0, 0, 0]"),
        ("image_std", [1, -1, 1], "three numbers from 1e-06 to 1e+06, got [1, -1, 1]"),
        ("image_std", [1, 1, float("nan")], "three numbers from 1e-06 to 1e+06, got [1, 1, nan]"),
        ("image_std", [1, 1], "three numbers from 1e-06 to 1e+06, got [1, 1]"),
        ("image_std", 0.5, "three numbers from 1e-06 to 1e+06, got 0.5"),
        ("image_mean", [0, 0, float("inf")], "three numbers from -1e+06 to 1e+06, got [0, 0, inf]"),
        ("image_mean", [0, 0, "x"], "three numbers from -1e+06 to 1e+06, got [0, 0, 'x']"),
        ("image_mean", None, "three numbers from -1e+06 to 1e+06, got None"),
        ("norm_std", [0, 0, 0], "three numbers from 1e-06 to 1e+06, got [0, 0, 0]"),
        ("rescale_factor", 0, "a number from 1e-06 to 1e+06, got 0"),
        ("rescale_factor", float("nan"), "a number from 1e-06 to 1e+06, got nan"),
        ("rescale_factor", [1], "a number from 1e-06 to 1e+06, got [1]"),
        ("resample", 9, "1 (lanczos), 2 (bilinear), 3 (bicubic), got 9"),
        ("resample", [], "1 (lanczos), 2 (bilinear), 3 (bicubic), got []"),
        ("resample", True, "1 (lanczos), 2 (bilinear), 3 (bicubic), got True"),
    ],
)
def test_a_setting_that_cannot_be_is_named(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        PixelSettings.read({name: value}, "here", processor="CLIPImageProcessor")
    assert str(raised.value) == f"here: processor setting {name} must be {allowed}"


@pytest.mark.parametrize("name", ["qwen2_vl", "smolvlm"])
def test_a_setting_that_cannot_be_stops_the_loading(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def spoil(data: dict[str, Any]) -> None:
        data["image_processor"]["image_std"] = [0, 0, 0]

    path = edit_json(tiny_checkpoint(name), tmp_path / "spoilt", "processor_config.json", spoil)
    with pytest.raises(CheckpointError, match="processor setting image_std must be three numbers") as raised:
        load_family(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_pixels_of_a_file_that_leaves_them_out_equal_the_processors(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """A LLaVA whose pictures are made by SigLIP's processor."""
    import torch
    from transformers import SiglipImageProcessor

    def drop(data: dict[str, Any]) -> None:
        settings = {key: value for key, value in data["image_processor"].items() if key not in NAMES}
        del settings["crop_size"]
        settings |= {"image_processor_type": "SiglipImageProcessor", "size": {"height": 20, "width": 20}}
        data["image_processor"] = settings

    family, _ = load_family(edit_json(tiny_checkpoint("llava"), tmp_path / "siglip", "processor_config.json", drop))
    picture = draw_image(33, 47)
    encoder: Any = family.build_encoder(torch.device("cpu"), torch.float32)
    found = encoder.load_pixels(preprocess(family, picture)).permute(0, 3, 1, 2)
    processor = SiglipImageProcessor(size={"height": 20, "width": 20})
    expected = processor(torch.from_numpy(picture.frames[0]).permute(2, 0, 1), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_library_is_part_of_the_preprocessing_key() -> None:
    """Pixels of one library must not be found in a cache for the other's."""
    read = partial(PixelSettings.read, {}, "a folder", processor="CLIPImageProcessor")
    settings = [read(library="pillow"), read(library="torchvision"), read()]
    keys = [one.as_json() for one in settings]
    assert keys[0] != keys[1] == keys[2]
    assert [one.resize((3, 4)).library for one in settings] == ["pillow", "torchvision", "torchvision"]
