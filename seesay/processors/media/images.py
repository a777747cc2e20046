"""Image transforms that model families share: sizes, resizing, patches.

Frames are uint8 arrays [N, H, W, 3]; every transform equals the torchvision backend of Transformers' processors
(resized pixels are rounded to uint8 before they are normalized, but for `resize_as_float`). torch is imported where it
is used; torchvision is not needed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from seesay.device.lanczos import has_lanczos
from seesay.errors import ErrorCode, RequestError
from seesay.values.frame_chain import Library, Patches, Resample

T = TypeVar("T", bound=np.generic)
Frames = npt.NDArray[np.uint8]

MAX_ASPECT_RATIO = 200

# --- sizes -----------------------------------------------------------------------------------------------------------


def smart_resize(
    height: int,
    width: int,
    *,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    num_frames: int = 1,
    temporal_factor: int = 1,
    own: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """Return (height, width) for Qwen's towers: multiples of `factor` that hold `min_pixels` to `max_pixels` pixels and
    about keep the aspect ratio. These are pixels of `num_frames` frames together, whose number is rounded to multiples
    of `temporal_factor`. own: the (height, width) of the picture, if it has been resized before.

    Raises `RequestError` (invalid_media) for pictures more than 200 times longer than wide.
    """
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        own_height, own_width = own or (height, width)
        raise RequestError(
            ErrorCode.INVALID_MEDIA,
            f"a picture of {own_width}x{own_height} pixels is more than {MAX_ASPECT_RATIO} times longer than wide: "
            "crop or pad it",
        )
    new_height = round(height / factor) * factor
    new_width = round(width / factor) * factor
    new_frames = round(num_frames / temporal_factor) * temporal_factor
    if new_frames * new_height * new_width > max_pixels:
        shrink = math.sqrt(num_frames * height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_frames * new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (num_frames * height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    # A side below factor / 2 rounds to 0, which only a min_pixels of 0 lets through.
    return max(factor, new_height), max(factor, new_width)


def shortest_edge_size(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return (height, width) with the shorter side equal to `edge`; the longer one is rounded down."""
    if width <= height:
        return int(edge * height / width), edge
    return edge, int(edge * width / height)


def longest_edge_size(height: int, width: int, edge: int, *, least: int) -> tuple[int, int]:
    """Return (height, width) with the longer side equal to `edge`; both are rounded, the shorter one up to `least`."""
    scale = edge / max(height, width)
    return max(round(height * scale), least), max(round(width * scale), least)


def floored_edge_size(height: int, width: int, edge: int, *, least: int) -> tuple[int, int]:
    """As `longest_edge_size`, with both sides rounded down."""
    longest = max(height, width)
    return max(int(height / longest * edge), least), max(int(width / longest * edge), least)


GridOrder = Literal["columns", "set"]
"""Order of the grids: fewer columns first, as in Transformers; or in the order of a Python set, as in InternVL's own
code."""


@lru_cache(maxsize=64)
def _list_grids(min_tiles: int, max_tiles: int, order: GridOrder) -> tuple[tuple[int, int], ...]:
    """Return the (rows, columns) of all grids of so many tiles, those of fewer tiles first."""
    pairs = [
        (columns, rows)
        for largest in ((max_tiles,) if order == "columns" else range(min_tiles, max_tiles + 1))
        for columns in range(1, largest + 1)
        for rows in range(1, min(largest, max_tiles // columns) + 1)
        if columns * rows >= min_tiles
    ]
    listed = sorted(pairs if order == "columns" else set(pairs), key=math.prod)
    return tuple((rows, columns) for columns, rows in listed)


@lru_cache(maxsize=256)
def tile_grid(
    size: tuple[int, int], tile: tuple[int, int], *, min_tiles: int, max_tiles: int, order: GridOrder = "columns"
) -> tuple[int, int]:
    """Return the (rows, columns) of tiles whose aspect ratio is nearest to that of `size`; pairs are (height, width).

    Of grids that are equally near, a larger one wins while a picture of `size` has more than half of the grid's pixels
    (InternVL's rule). order: of grids with the same number of tiles.
    """
    height, width = size
    best, best_difference = (1, 1), math.inf
    for rows, columns in _list_grids(min_tiles, max_tiles, order):
        difference = abs(width / height - columns / rows)
        is_filled = height * width > 0.5 * tile[0] * tile[1] * rows * columns
        if difference < best_difference or (difference == best_difference and is_filled):
            best, best_difference = (rows, columns), difference
    return best


# --- pixels ----------------------------------------------------------------------------------------------------------


def resize(
    frames: Frames,
    size: tuple[int, int],
    *,
    resample: Resample = "bicubic",
    library: Library = "torchvision",
    antialias: bool = True,
) -> Frames:
    """Scale frames [N, H, W, 3] to `size` (height, width): uint8 [N, height, width, 3]; the same array if it fits.
    The numbers are those of `library`; without `antialias` they are torchvision's."""
    if frames.shape[1:3] == size:
        return frames
    if library == "pillow":
        return _resize_in_pillow(frames, size, resample)
    if resample == "lanczos" and not has_lanczos():
        return _resize_lanczos(frames, size)
    import torch
    from torch.nn.functional import interpolate

    # A channels-last view of the array as it is: no copy, and torch's fastest uint8 kernel.
    pixels = torch.from_numpy(_writable(frames))
    if len(pixels) == 1:  # a new axis of NumPy has stride 0, by which torch does not see that the channels are last
        pixels = pixels[0].unsqueeze(0)
    pixels = pixels.permute(0, 3, 1, 2)
    if resample == "bilinear" and not _has_uint8_bilinear():
        pixels = pixels.float()
    scaled = interpolate(pixels, size=size, mode=resample, align_corners=False, antialias=antialias)
    if scaled.dtype != torch.uint8:
        scaled = scaled.clamp_(0, 255).round_().to(torch.uint8)
    result: Frames = scaled.permute(0, 2, 3, 1).contiguous().numpy()
    return result


def resize_as_float(
    frames: Frames, size: tuple[int, int], *, resample: Resample, clamps: bool = True, antialias: bool = True
) -> npt.NDArray[np.float32]:
    """Scale frames [N, H, W, 3] to `size` (height, width) by bilinear or bicubic interpolation without rounding:
    float32 [N, height, width, 3], in memory of its own. They are from 0 to 255, where it `clamps` what bicubic
    interpolation overshoots."""
    import torch
    from torch.nn.functional import interpolate

    pixels = torch.from_numpy(_writable(frames)).permute(0, 3, 1, 2).to(torch.float32)
    if frames.shape[1:3] != size:
        pixels = interpolate(pixels, size=size, mode=resample, align_corners=False, antialias=antialias)
        pixels = pixels.clamp_(0, 255) if clamps else pixels
    result: npt.NDArray[np.float32] = pixels.permute(0, 2, 3, 1).contiguous().numpy()
    return result


def _has_uint8_bilinear() -> bool:
    """Return whether torchvision resizes uint8 natively with this filter on this CPU; otherwise it uses float32."""
    import platform

    import torch

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")


def _resize_in_pillow(frames: Frames, size: tuple[int, int], resample: Resample) -> Frames:
    from PIL import Image

    filter = Image.Resampling[resample.upper()]
    scaled = [np.array(Image.fromarray(frame).resize(size[::-1], filter)) for frame in frames]
    return scaled[0][None] if len(scaled) == 1 else np.stack(scaled)


def _resize_lanczos(frames: Frames, size: tuple[int, int]) -> Frames:
    """Scale by Pillow: the width first, always. In one call it begins with the height of very thin pictures."""
    from PIL import Image

    height, width = size
    lanczos = Image.Resampling.LANCZOS
    wide = [Image.fromarray(frame).resize((width, frame.shape[0]), lanczos) for frame in frames]
    return np.stack([np.asarray(image.resize((width, height), lanczos)) for image in wide])


def _writable(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """Return the array itself, or a copy of a read-only one (torch warns when it shares such memory)."""
    return array if array.flags.writeable else array.copy()


# --- layouts ---------------------------------------------------------------------------------------------------------


def cut_patches(frames: npt.NDArray[T], layout: Patches) -> npt.NDArray[T]:
    """Cut frames [N, H, W, 3] into the vectors of `layout`: [P, size]."""
    import torch

    count, height, width, channels = frames.shape
    (rows, columns), steps = layout.count_groups((height, width)), -(-count // layout.num_frames)
    num_own = 1 if count == 1 else layout.num_frames  # a picture is cut once, and its patches are repeated
    pixels = torch.from_numpy(_writable(frames))
    if count > 1 and (missing := -count % layout.num_frames):
        pixels = torch.cat((pixels, pixels[-1:].expand(missing, -1, -1, -1)))
    high, wide = (rows, layout.group[0], layout.size[0]), (columns, layout.group[1], layout.size[1])
    # axes: step, frame in it, row group, row in it, y, column group, column in it, x, channel
    axes = pixels.reshape(steps, num_own, *high, *wide, channels).permute(0, 2, 5, 3, 6, 8, 1, 4, 7)
    cut = axes.reshape(-1, channels, num_own, math.prod(layout.size))
    vectors = cut.expand(-1, -1, layout.num_frames, -1).reshape(len(cut), -1)
    result: npt.NDArray[T] = vectors.numpy()
    return result
