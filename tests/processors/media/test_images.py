"""Every transform against Transformers' own processors (torchvision backend), on pictures of odd sizes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from seesay.config import MediaLimits
from seesay.device.lanczos import has_lanczos
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media import images
from seesay.processors.media.host_chain import run_chains
from seesay.processors.media.pillow import to_rgb
from seesay.values.frame_chain import Chain, Patches, Resample, Resize, Tiles, crop_center, pad_to

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIZES = [(40, 60), (37, 211), (333, 97), (224, 224), (448, 300), (700, 901), (5, 9)]
# Resized pixels are equal; (x - m) / s is rounded in the same order.
TOLERANCE = 1e-6


def normalize(frames: Any, *, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Frames as Transformers' processors give them out: float32 [N, 3, H, W], (frames / 255 - mean) / std per channel.
    Ours leave that to the encoder, which does it on its device."""
    planes = torch.from_numpy(np.array(frames)).permute(0, 3, 1, 2).contiguous().float()
    scaled = (torch.tensor(tuple(values)).mul_(255.0).view(3, 1, 1) for values in (mean, std))
    return planes.sub_(next(scaled)).div_(next(scaled))


def noise(height: int, width: int, count: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def channels_first(frames: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(28, 56), (97, 333), (448, 448), (31, 7)])
def test_resize_equals_torchvision(resample: Resample, size: tuple[int, int]) -> None:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as tv

    frames = noise(97, 130, count=2)
    ours = images.resize(frames, size, resample=resample)
    theirs = tv.resize(channels_first(frames), list(size), interpolation=InterpolationMode(resample), antialias=True)
    assert ours.dtype == np.uint8 and ours.shape == (2, *size, 3)
    difference = np.abs(ours.astype(int) - theirs.permute(0, 2, 3, 1).numpy())
    assert difference.max() <= (2 if resample == "lanczos" and not has_lanczos() else 0)


def open_as(mode: str, pixels: np.ndarray) -> Image.Image:
    """Return a picture of this mode, which people have beside plain ones."""
    if mode == "I;16":
        return Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    rgba = Image.fromarray(np.dstack([pixels, pixels[::-1, :, 0]]), "RGBA")
    return rgba.convert("RGB").quantize(64) if mode == "P" else rgba


@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos"])
def test_resize_equals_pillow(resample: Resample) -> None:
    """On 200 pairs of sizes, of pictures with alpha, a palette, or 16 bits among them; very thin ones, too."""
    rng = np.random.default_rng(3)
    sizes = np.exp(rng.uniform(0, np.log(300), (200, 4))).astype(int)
    sizes[0], sizes[1], sizes[2] = (700, 3, 90, 40), (700, 6, 800, 40), (3, 700, 40, 90)
    modes = [None] * 4 + ["RGBA", "P", "I;16"]
    for number, (height, width, new_height, new_width) in enumerate(sizes.tolist()):
        pixels = noise(height, width, seed=number)[0]
        image = Image.fromarray(pixels)
        if (mode := modes[number % len(modes)]) is not None:
            image = to_rgb(open_as(mode, pixels), MediaLimits(), "a picture")
        theirs = np.asarray(image.resize((new_width, new_height), Image.Resampling[resample.upper()]))
        frames = np.asarray(image)[None]
        ours = images.resize(frames, (new_height, new_width), resample=resample, library="pillow")
        assert np.array_equal(ours[0], theirs), (height, width, new_height, new_width, mode)


@pytest.mark.parametrize("size", [(28, 56), (97, 333), (31, 7)])
def test_lanczos_of_pillow_differs_by_rounding(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken with versions of torch that have none."""
    frames = noise(97, 130, count=2)
    own = images.resize(frames, size, resample="lanczos")
    monkeypatch.setattr(images, "has_lanczos", lambda: False)
    assert np.abs(images.resize(frames, size, resample="lanczos").astype(int) - own).max() <= 2


def test_a_picture_is_resized_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame with a new axis, as pictures are decoded to, has channels that torch sees to be the last: for others it
    takes twice the time."""
    seen: list[torch.Tensor] = []
    interpolate = torch.nn.functional.interpolate

    def watch(pixels: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.append(pixels)
        return interpolate(pixels, **options)

    monkeypatch.setattr(torch.nn.functional, "interpolate", watch)
    frame = np.random.default_rng(0).integers(0, 256, (30, 41, 3), dtype=np.uint8)
    expected = images.resize(np.stack([frame]), (17, 22))
    assert np.array_equal(images.resize(frame[None], (17, 22)), expected)
    assert all(pixels.is_contiguous(memory_format=torch.channels_last) for pixels in seen) and len(seen) == 2


def test_resize_leaves_fitting_and_read_only_frames() -> None:
    frames = noise(20, 30)
    assert images.resize(frames, (20, 30)) is frames
    frames.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert images.resize(frames, (10, 10)).shape == (1, 10, 10, 3)
        assert normalize(frames, mean=CLIP_MEAN, std=CLIP_STD).shape == (1, 3, 20, 30)


def make_patches(frames: np.ndarray, size: tuple[int, int]) -> torch.Tensor:
    """Qwen2-VL's normalized patches."""
    patches = run_chains(frames, ((Resize(size, "bicubic"), Patches((14, 14), (2, 2), 2)),))
    values = normalize(patches.reshape(len(patches), 3, -1, 1).swapaxes(1, 3), mean=CLIP_MEAN, std=CLIP_STD)
    return values.reshape(len(patches), -1)


@pytest.mark.parametrize("size", SIZES)
def test_qwen_image_equals_transformers(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    frames = noise(*size)
    theirs = Qwen2VLImageProcessor()(channels_first(frames)[0], return_tensors="pt")
    target = images.smart_resize(*size, factor=28, min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
    assert theirs["image_grid_thw"].tolist() == [[1, target[0] // 14, target[1] // 14]]
    torch.testing.assert_close(make_patches(frames, target), theirs["pixel_values"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_qwen_video_equals_transformers(count: int) -> None:
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    frames = noise(120, 90, count=count)
    theirs = Qwen2VLVideoProcessor(cap_pixels_per_frame=False)(
        [channels_first(frames)], do_sample_frames=False, return_tensors="pt"
    )
    target = images.smart_resize(120, 90, factor=28, min_pixels=128 * 28 * 28, max_pixels=768 * 28 * 28)
    assert theirs["video_grid_thw"].tolist() == [[-(-count // 2), target[0] // 14, target[1] // 14]]
    torch.testing.assert_close(make_patches(frames, target), theirs["pixel_values_videos"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("do_pad", [False, True])
def test_llava_image_equals_transformers(size: tuple[int, int], do_pad: bool) -> None:
    from transformers.models.llava.image_processing_llava import LlavaImageProcessor

    frames = noise(*size)
    processor = LlavaImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, do_pad=do_pad)
    theirs = processor(channels_first(frames)[0], return_tensors="pt")["pixel_values"]
    padding: Chain = ()
    if do_pad:
        padding, size = pad_to(size, (max(size), max(size)), (122, 116, 104)), (max(size), max(size))
    target = images.shortest_edge_size(*size, 56)
    chain = (*padding, Resize(target, "bicubic"), *crop_center(target, (56, 56)), Tiles((56, 56)))
    ours = normalize(run_chains(frames, (chain,)), mean=CLIP_MEAN, std=CLIP_STD)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("size", "crop"), [((20, 30), (24, 24)), ((21, 31), (40, 10)), ((10, 9), (11, 12)), ((8, 8), (8, 8))]
)
def test_center_crop_equals_transformers(size: tuple[int, int], crop: tuple[int, int]) -> None:
    from transformers.image_utils import SizeDict
    from transformers.models.clip.image_processing_clip import CLIPImageProcessor

    frames = noise(*size, count=2)
    theirs = CLIPImageProcessor().center_crop(channels_first(frames), SizeDict(height=crop[0], width=crop[1]))
    ours = run_chains(frames, ((*crop_center(size, crop), Tiles(crop)),))
    np.testing.assert_array_equal(ours, theirs.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("max_tiles", [1, 4, 12])
def test_internvl_tiles_equal_transformers(size: tuple[int, int], max_tiles: int) -> None:
    from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor

    frames = noise(*size)
    processor = GotOcr2ImageProcessor(
        size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=max_tiles
    )
    theirs = processor(channels_first(frames)[0], return_tensors="pt")
    grid = images.tile_grid(size, (56, 56), min_tiles=1, max_tiles=max_tiles)
    tile = (Resize((56, 56), "bicubic"), Tiles((56, 56)))
    cut = (Resize((56 * grid[0], 56 * grid[1]), "bicubic"), Tiles((56, 56)))
    tiles = run_chains(frames, (tile,) if grid == (1, 1) else (cut, tile))
    assert [len(tiles)] == list(theirs["num_patches"])
    ours = normalize(tiles, mean=CLIP_MEAN, std=CLIP_STD)
    torch.testing.assert_close(ours, theirs["pixel_values"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("size", "limits", "published", "transformers"),
    [((2, 5), (4, 4), (1, 4), (2, 2)), ((1, 5), (8, 9), (1, 8), (2, 4)), ((1, 5), (9, 9), (1, 9), (3, 3))],
)
def test_of_grids_that_are_equally_near_the_published_code_takes_its_own(
    size: tuple[int, int], limits: tuple[int, int], published: tuple[int, int], transformers: tuple[int, int]
) -> None:
    """As dynamic_preprocess of InternVL's dataset.py chose them for a tile of 448 pixels."""
    own = partial(images.tile_grid, size, (448, 448), min_tiles=limits[0], max_tiles=limits[1])
    assert (own(order="set"), own()) == (published, transformers)


def test_tile_grid_equals_transformers() -> None:
    from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

    rng = np.random.default_rng(1)
    for height, width in [[448, 448], [896, 448], [1000, 2000], *rng.integers(1, 3000, (300, 2)).tolist()]:
        for limits in ((1, 12), (2, 6), (1, 1), (3, 40)):
            columns, rows = get_optimal_tiled_canvas((height, width), (448, 448), *limits)
            ours = images.tile_grid((height, width), (448, 448), min_tiles=limits[0], max_tiles=limits[1])
            assert ours == (rows, columns), (height, width, limits)


def test_smart_resize_equals_transformers() -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    rng = np.random.default_rng(2)
    for height, width in rng.integers(10, 5000, (500, 2)).tolist():
        for low, high in ((56 * 56, 28 * 28 * 1280), (200 * 200, 300 * 300)):
            if max(height, width) / min(height, width) <= 200:
                ours = images.smart_resize(height, width, factor=28, min_pixels=low, max_pixels=high)
                assert ours == smart_resize(height, width, 28, low, high)


def test_smart_resize_refuses_a_line_and_never_gives_zero() -> None:
    with pytest.raises(RequestError, match="2x500 pixels is more than 200 times") as raised:
        images.smart_resize(500, 2, factor=28, min_pixels=1, max_pixels=10**6)
    assert raised.value.code is ErrorCode.INVALID_MEDIA
    assert images.smart_resize(5, 500, factor=28, min_pixels=0, max_pixels=10**6) == (28, 504)


def test_shortest_edge_size_equals_transformers() -> None:
    from transformers.image_transforms import get_resize_output_image_size

    for height, width in np.random.default_rng(3).integers(1, 2000, (200, 2)).tolist():
        theirs = get_resize_output_image_size(
            np.empty((3, height, width), dtype=np.uint8),
            336,
            default_to_square=False,
            input_data_format="channels_first",
        )
        assert images.shortest_edge_size(height, width, 336) == theirs
