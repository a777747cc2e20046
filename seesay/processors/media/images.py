"""Image transforms that model families share: resize, crop, pad, patches, tiles.

Frames are uint8 arrays [N, H, W, 3]; every transform equals the torchvision backend of Transformers' processors
(resized pixels are rounded to uint8 before they are normalized). torch is imported where it is used; torchvision is
not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from seesay.errors import ConfigError, ErrorCode, RequestError

if TYPE_CHECKING:
    import torch

Frames = npt.NDArray[np.uint8]
Resample = Literal["bilinear", "bicubic", "lanczos"]

_PIL_FILTERS: dict[int, Resample] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
_MAX_ASPECT_RATIO = 200


def resample_from_config(value: int) -> Resample:
    """Return the filter of a preprocessor_config's `resample` number (PIL's numbering)."""
    try:
        return _PIL_FILTERS[value]
    except KeyError:
        raise ConfigError(f"resample must be 1 (lanczos), 2 (bilinear) or 3 (bicubic), got {value!r}") from None


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
) -> tuple[int, int]:
    """Return (height, width) for Qwen's towers: multiples of `factor` that hold `min_pixels` to `max_pixels` pixels and
    about keep the aspect ratio. These are pixels of `num_frames` frames together, whose number is rounded to multiples
    of `temporal_factor`.

    Raises `RequestError` (invalid_media) for pictures more than 200 times longer than wide.
    """
    if max(height, width) > _MAX_ASPECT_RATIO * min(height, width):
        raise RequestError(
            ErrorCode.INVALID_MEDIA,
            f"a picture of {width}x{height} pixels is more than {_MAX_ASPECT_RATIO} times longer than wide: "
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


@lru_cache(maxsize=256)
def tile_grid(size: tuple[int, int], tile: tuple[int, int], *, min_tiles: int, max_tiles: int) -> tuple[int, int]:
    """Return the (rows, columns) of tiles whose aspect ratio is nearest to that of `size`; pairs are (height, width).

    Of grids that are equally near, a larger one wins while a picture of `size` has more than half of the grid's pixels
    (InternVL's rule).
    """
    height, width = size
    grids = [
        (rows, columns)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles // columns + 1)
        if rows * columns >= min_tiles
    ]
    best, best_difference = (1, 1), math.inf
    for rows, columns in sorted(grids, key=math.prod):
        difference = abs(width / height - columns / rows)
        is_filled = height * width > 0.5 * tile[0] * tile[1] * rows * columns
        if difference < best_difference or (difference == best_difference and is_filled):
            best, best_difference = (rows, columns), difference
    return best


# --- pixels ----------------------------------------------------------------------------------------------------------


def resize(frames: Frames, size: tuple[int, int], *, resample: Resample = "bicubic", antialias: bool = True) -> Frames:
    """Scale frames [N, H, W, 3] to `size` (height, width): uint8 [N, height, width, 3]; the same array if it fits."""
    if frames.shape[1:3] == size:
        return frames
    if resample == "lanczos" and not _has_lanczos():
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


def _has_uint8_bilinear() -> bool:
    """Return whether torchvision resizes uint8 natively with this filter on this CPU; otherwise it uses float32."""
    import platform

    import torch

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")


@cache
def _has_lanczos() -> bool:
    """Return whether this torch has the filter, and thereby torchvision; Pillow's differs by rounding."""
    import torch
    from torch.nn.functional import interpolate

    try:
        pixels = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
        interpolate(pixels, size=(2, 2), mode="lanczos", align_corners=False, antialias=True)
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def _resize_lanczos(frames: Frames, size: tuple[int, int]) -> Frames:
    from PIL import Image

    scaled = [Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.LANCZOS) for frame in frames]
    return np.stack([np.asarray(image) for image in scaled])


def _writable(array: Frames) -> Frames:
    """Return the array itself, or a copy of a read-only one (torch warns when it shares such memory)."""
    return array if array.flags.writeable else array.copy()


def center_crop(frames: Frames, size: tuple[int, int]) -> Frames:
    """Cut the middle out of frames [N, H, W, 3]: uint8 [N, height, width, 3]. Smaller frames are padded with black."""
    missing_h, missing_w = max(0, size[0] - frames.shape[1]), max(0, size[1] - frames.shape[2])
    if missing_h or missing_w:
        before_h, before_w = missing_h // 2, missing_w // 2
        pads = ((0, 0), (before_h, missing_h - before_h), (before_w, missing_w - before_w), (0, 0))
        frames = np.pad(frames, pads)
    top, left = (frames.shape[1] - size[0]) // 2, (frames.shape[2] - size[1]) // 2
    return frames[:, top : top + size[0], left : left + size[1]]


def pad_to_square(frames: Frames, color: Sequence[int]) -> Frames:
    """Put frames [N, H, W, 3] in the middle of squares of side max(H, W) filled with `color` (three values 0 … 255)."""
    count, height, width, _ = frames.shape
    if height == width:
        return frames
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    square = np.empty((count, side, side, 3), dtype=np.uint8)
    square[...] = np.asarray(color, dtype=np.uint8)
    square[:, top : top + height, left : left + width] = frames
    return square


# --- layouts ---------------------------------------------------------------------------------------------------------


def qwen_patchify(
    frames: torch.Tensor, *, patch_size: int, temporal_patch_size: int, merge_size: int
) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Cut normalized frames [N, 3, H, W] into Qwen's patch vectors.

    Returns patches [t·h·w, 3·temporal_patch_size·patch_size²] and the grid (t, h, w). Vectors are laid out as
    (channel, time, y, x); the merge_size² patches that one merged token covers are neighbours. N is filled up to a
    multiple of `temporal_patch_size` by repeating the last frame: a picture is one time step of equal frames.
    H and W must be multiples of patch_size · merge_size.
    """
    count, channels, height, width = frames.shape
    side = patch_size * merge_size
    assert height % side == 0 and width % side == 0, f"{height}x{width} is not a multiple of {side}"
    missing = -count % temporal_patch_size
    num_own = 1 if count == 1 else temporal_patch_size  # a picture is cut once, and its patches are repeated
    if missing and count > 1:
        import torch

        frames = torch.cat((frames, frames[-1:].expand(missing, -1, -1, -1)))
    grid_t, grid_h, grid_w = (count + missing) // temporal_patch_size, height // patch_size, width // patch_size
    rows, columns = (grid_h // merge_size, merge_size, patch_size), (grid_w // merge_size, merge_size, patch_size)
    patches = frames.reshape(grid_t, num_own, channels, *rows, *columns)
    # axes: t, time in patch, channel, h group, h in group, y, w group, w in group, x
    patches = patches.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    grid = (grid_t, grid_h, grid_w)
    cut = patches.reshape(math.prod(grid), channels, num_own, patch_size * patch_size)
    return cut.expand(-1, -1, temporal_patch_size, -1).reshape(math.prod(grid), -1), grid


def split_tiles(
    frame: Frames, tile: tuple[int, int], *, grid: tuple[int, int], resample: Resample = "bicubic"
) -> Frames:
    """Cut one picture uint8 [1, H, W, 3] into InternVL's tiles: uint8 [tiles, height, width, 3], row by row.

    The picture is stretched to the `grid` of (rows, columns), which `tile_grid` chooses. Several tiles are followed by
    a thumbnail of the whole picture.
    """
    rows, columns = grid
    stretched = resize(frame, (tile[0] * rows, tile[1] * columns), resample=resample)
    tiles = stretched.reshape(rows, tile[0], columns, tile[1], 3).transpose(0, 2, 1, 3, 4).reshape(-1, *tile, 3)
    if len(tiles) > 1:
        tiles = np.concatenate((tiles, resize(frame, tile, resample=resample)))
    return tiles
