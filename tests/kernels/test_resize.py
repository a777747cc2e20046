"""The resizing kernels against torch's resizing on the CPU, bit for bit. On a GPU the tests run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from triton_cases import DEVICE, HAS_TRITON, MARKS, ON_GPU, runs_here

from seesay.kernels.resize import Filter
from seesay.processors.media.images import qwen_patchify, resize

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


def make_patches(
    frames: npt.NDArray[np.uint8], size: tuple[int, int], kind: Filter, table: torch.Tensor
) -> torch.Tensor:
    """Patches of 4 pixels and 2 frames in groups of 2 · 2, by the kernels."""
    from seesay.kernels import resize as kernels

    on_device = torch.from_numpy(frames).to(DEVICE)
    rows, columns = (kernels.make_taps(*axis, kind) for axis in zip(frames.shape[1:3], size, strict=True))
    rows, columns = (
        taps._replace(starts=torch.tensor(taps.starts).to(DEVICE), weights=torch.tensor(taps.weights).to(DEVICE))
        for taps in (rows, columns)
    )
    if frames.shape[2] != size[1]:
        on_device = kernels.resize_columns(on_device, columns)
    layout = kernels.PatchLayout(patch=(4, 4), group=(2, 2), num_frames=2)
    num_patches = -(-len(frames) // 2) * size[0] * size[1] // 16
    out = torch.full((num_patches, layout.vector_size), torch.nan, device=DEVICE, dtype=table.dtype)
    kernels.cut_patches(on_device, rows, table, layout, out)
    return out


def expect_patches(
    frames: npt.NDArray[np.uint8], size: tuple[int, int], kind: Filter, table: torch.Tensor
) -> torch.Tensor:
    resized = torch.from_numpy(resize(frames, size, resample=kind)).permute(0, 3, 1, 2)
    patches, _ = qwen_patchify(resized, patch_size=4, temporal_patch_size=2, merge_size=2)
    values = patches.view(len(patches), 3, -1).long().to(DEVICE)
    return torch.stack([table[channel][values[:, channel]] for channel in range(3)], dim=1).flatten(1)


@runs_here
@pytest.mark.parametrize("kind", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("size", "new_size"), LARGE if ON_GPU else SMALL)
def test_patches_are_those_of_the_cpu(size: tuple[int, int], new_size: tuple[int, int], kind: Filter) -> None:
    """Every value of the table is another, so that equal patches were resized equally."""
    frames, table = random_frames(1, size), random_table(torch.float32)
    assert torch.equal(make_patches(frames, new_size, kind, table), expect_patches(frames, new_size, kind, table))


@runs_here
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_patch_of_a_clip_holds_two_frames(count: int) -> None:
    """The last frame stands for one that is missing."""
    frames, table = random_frames(count, (20, 30)), random_table(torch.bfloat16)
    ours, expected = (f(frames, (24, 32), "bicubic", table) for f in (make_patches, expect_patches))
    assert torch.equal(ours, expected)


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
@pytest.mark.parametrize("kind", ["bicubic", "bilinear"])
def test_weights_give_what_the_cpu_gives(kind: Filter) -> None:
    """For 200 pairs of lengths, computed with NumPy."""
    from seesay.kernels.resize import make_taps

    random = np.random.default_rng(5)
    for size, new_size in random.integers(1, 2000, (200, 2)).tolist():
        line = random.integers(0, 256, (1, 1, size, 3), dtype=np.uint8)
        taps = make_taps(size, new_size, kind)
        sources = np.minimum(taps.starts + np.arange(len(taps.weights))[:, None], size - 1)
        total = taps.half + (taps.weights[..., None].astype(np.int64) * line[0, 0][sources]).sum(axis=0)
        expected = resize(line, (1, new_size), resample=kind)[0, 0]
        assert np.array_equal(np.clip(total >> taps.precision, 0, 255), expected), (size, new_size)
