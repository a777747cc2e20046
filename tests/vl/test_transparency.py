"""What becomes of transparent parts of pictures, beside Transformers' own processors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from enrolment import CHECKPOINTS, FAMILIES, VISION_MODULES
from PIL import Image

from seesay import load_image

FAST = ("qwen2_vl", "llava", "deepseek_vl")
OWN = [name for name in FAMILIES if hasattr(transformers, CHECKPOINTS[name].architecture.partition("/")[0])]
NAMES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in (*OWN, *VISION_MODULES)]


def draw(mode: str) -> Image.Image:
    """Return a picture some of whose pixels are transparent, or half so."""
    rng = np.random.default_rng(0)
    rgba = rng.integers(0, 256, (72, 88, 4), dtype=np.uint8)
    rgba[..., 3] = rng.choice([0, 60, 200, 255], (72, 88))
    image = Image.fromarray(rgba)
    if mode == "P":
        image = image.convert("RGB").quantize(64)
        image.info["transparency"] = 3
        return image
    return image.convert(mode)


def sums(processor: Any, image: Image.Image) -> list[float]:
    """Return the sums of all arrays of pixels."""
    made = processor.image_processor(images=[image], return_tensors="pt").values()
    tensors = [each for value in made for each in (value if isinstance(value, (list, tuple)) else [value])]
    return [float(each.double().sum()) for each in tensors if torch.is_tensor(each) and each.is_floating_point()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transformers_processors_put_transparent_parts_on_white_too(
    name: str, mode: str, tiny_checkpoint: Callable[[str], Path]
) -> None:
    processor = transformers.AutoProcessor.from_pretrained(tiny_checkpoint(name))
    image = draw(mode)
    ours, dropped = (sums(processor, load_image(image, transparency=kind)) for kind in ("white", "drop"))
    if name.startswith("deepseek_vl"):
        with pytest.raises(ValueError, match="background_color must have no more than"):
            sums(processor, image)
        return
    theirs = sums(processor, image)
    assert theirs
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert not np.allclose(dropped, theirs, rtol=1e-6)
