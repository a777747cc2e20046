"""The resizing kernels against torch's and Pillow's resizing on the CPU, bit for bit. On a GPU the tests run as they
are, elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from triton_cases import DEVICE, HAS_TRITON, MARKS, ON_GPU, parametrize_grid, runs_here

from seesay.device.lanczos import has_lanczos
from seesay.processors.media import images
from seesay.processors.media.images import cut_patches, resize
from seesay.values.frame_chain import Patches, Resample

pytestmark = MARKS

# (height, width) before and after; those after are multiples of 4 · 2.
SMALL = [
    ((31, 45), (40, 56)),
    ((61, 77), (24, 40)),
    ((3, 200), (8, 128)),
    ((150, 1), (96, 8)),
    ((24, 33), (24, 48)),
    ((33, 24), (48, 24)),
    ((16, 24), (16, 24)),
    ((1, 20), (8, 16)),
]
LARGE = [
    ((1024, 1024), (1040, 1040)),
    ((3000, 4000), (912, 1216)),
    ((480, 640), (640, 480)),
    ((2000, 10), (1600, 16)),
    ((720, 1280), (720, 1280)),
    ((720, 1000), (720, 1280)),
    ((1, 50), (8, 64)),
]


def random_frames(count: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(sum(size)).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def random_table(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(3, 256, generator=torch.Generator().manual_seed(3)).to(DEVICE, dtype)


LAYOUT = Patches((4, 4), (2, 2), 2)
FILTERS = ["bicubic", "bilinear", "lanczos"]


def make_patches(
    frames: npt.NDArray[np.uint8],
    size: tuple[int, int],
    kind: Resample,
    table: torch.Tensor,
    precision: int | None = None,
) -> torch.Tensor:
    """Patches of 4 pixels and 2 frames in groups of 2 · 2, by the kernels."""
    from seesay.kernels import resize as kernels

    if kind == "lanczos" and not has_lanczos():
        precision = kernels.PILLOW_PRECISION
    on_device = torch.from_numpy(frames).to(DEVICE)
    rows, columns = (kernels.make_taps(*axis, kind, precision) for axis in zip(frames.shape[1:3], size, strict=True))
    rows, columns = (
        taps._replace(starts=torch.tensor(taps.starts).to(DEVICE), weights=torch.tensor(taps.weights).to(DEVICE))
        for taps in (rows, columns)
    )
    if frames.shape[2] != size[1]:
        on_device = kernels.resize_columns(on_device, columns)
    shape = (LAYOUT.count(len(frames), size), LAYOUT.vector_size)
    out = torch.full(shape, torch.nan, device=DEVICE, dtype=table.dtype)
    kernels.cut_patches(on_device, rows, table, LAYOUT, out)
    return out


def expect_patches(
    frames: npt.NDArray[np.uint8], size: tuple[int, int], kind: Resample, table: torch.Tensor
) -> torch.Tensor:
    patches = torch.from_numpy(cut_patches(resize(frames, size, resample=kind), LAYOUT))
    values = patches.view(len(patches), 3, -1).long().to(DEVICE)
    return torch.stack([table[channel][values[:, channel]] for channel in range(3)], dim=1).flatten(1)


@runs_here
@parametrize_grid(sizes=LARGE if ON_GPU else SMALL, kind=FILTERS)
def test_patches_are_those_of_the_cpu(sizes: tuple[tuple[int, int], tuple[int, int]], kind: Resample) -> None:
    """Every value of the table is another, so that equal patches were resized equally."""
    size, new_size = sizes
    frames, table = random_frames(1, size), random_table(torch.float32)
    assert torch.equal(make_patches(frames, new_size, kind, table), expect_patches(frames, new_size, kind, table))


@runs_here
@pytest.mark.parametrize(("size", "new_size"), [((61, 77), (40, 24)), ((204, 4), (40, 16))])
def test_without_a_filter_of_torch_patches_are_those_of_pillow(
    size: tuple[int, int], new_size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from seesay.kernels.resize import PILLOW_PRECISION

    monkeypatch.setattr(images, "has_lanczos", lambda: False)
    frames, table = random_frames(1, size), random_table(torch.float32)
    ours = make_patches(frames, new_size, "lanczos", table, PILLOW_PRECISION)
    assert torch.equal(ours, expect_patches(frames, new_size, "lanczos", table))


@runs_here
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_patch_of_a_clip_holds_two_frames(count: int) -> None:
    """The last frame stands for one that is missing."""
    frames, table = random_frames(count, (20, 30)), random_table(torch.bfloat16)
    ours, expected = (f(frames, (24, 32), "bicubic", table) for f in (make_patches, expect_patches))
    assert torch.equal(ours, expected)


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
@pytest.mark.parametrize("kind", [*FILTERS, "pillow"])
def test_weights_give_what_the_cpu_gives(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 200 pairs of lengths, computed with NumPy."""
    from seesay.kernels.resize import PILLOW_PRECISION, make_taps

    precision = PILLOW_PRECISION if kind == "lanczos" and not has_lanczos() else None
    if kind == "pillow":
        monkeypatch.setattr(images, "has_lanczos", lambda: False)
        kind, precision = "lanczos", PILLOW_PRECISION
    random = np.random.default_rng(5)
    for size, new_size in random.integers(1, 2000, (200, 2)).tolist():
        line = random.integers(0, 256, (1, 1, size, 3), dtype=np.uint8)
        taps = make_taps(size, new_size, kind, precision)
        sources = np.minimum(taps.starts + np.arange(len(taps.weights))[:, None], size - 1)
        total = taps.half + (taps.weights[..., None].astype(np.int64) * line[0, 0][sources]).sum(axis=0)
        expected = resize(line, (1, new_size), resample=kind)[0, 0]
        assert np.array_equal(np.clip(total >> taps.precision, 0, 255), expected), (size, new_size)
