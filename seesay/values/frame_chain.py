"""Chains of steps from decoded frames to what a tower takes, as values.

A family makes chains of the size of its media. `processors/media/host_chain.py` runs them on the host and
`encoders/device_chain.py` on the tower's GPU, bit for bit alike. Each chain starts from the decoded frames, and every
step takes all of them. Sizes are (height, width) in pixels; pixels are uint8 between any two steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

Resample = Literal["bilinear", "bicubic", "lanczos"]
Library = Literal["torchvision", "pillow"]
"""The library whose arithmetic a resizing has. The precisions of their weights differ, and so do pixels by a level or
more."""
Size = tuple[int, int]

CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Resize:
    """Scale frames to `size` with an antialiased filter, as a library does: columns first, then rows, each rounded. An
    axis of that length stays as it is. Pillow begins with the rows of very thin frames."""

    size: Size
    resample: Resample
    library: Library = "torchvision"

    def measure(self, size: Size) -> Size:  # noqa: ARG002
        return self.size

    def begins_with_rows(self, size: Size) -> bool:
        """Return whether frames of `size` are scaled along their height first (Pillow's `Image.resize`)."""
        return self.library == "pillow" and size[0] > 100 * size[1] and self.size[0] < size[0]


@dataclass(frozen=True, slots=True)
class Pad:
    """Put frames on a canvas of `size` in one color, `at` (top, left)."""

    size: Size
    at: tuple[int, int]
    color: tuple[int, int, int]

    def measure(self, size: Size) -> Size:
        assert all(at + length <= side for at, length, side in zip(self.at, size, self.size)), (self, size)
        return self.size


@dataclass(frozen=True, slots=True)
class Crop:
    """Cut out what has `size` and begins `at` (top, left). It ends where the frames end."""

    size: Size
    at: tuple[int, int]

    def measure(self, size: Size) -> Size:
        (top, left), (height, width) = self.at, self.size
        found = min(height, size[0] - top), min(width, size[1] - left)
        assert min(found) > 0, (self, size)
        return found


@dataclass(frozen=True, slots=True)
class Transpose:
    """Swap height and width."""

    def measure(self, size: Size) -> Size:
        return size[::-1]


@dataclass(frozen=True, slots=True)
class Split:
    """Make frames of their own of the tiles of `size` that each frame consists of, row by row."""

    size: Size

    def measure(self, size: Size) -> Size:
        assert not (size[0] % self.size[0] or size[1] % self.size[1]), (self, size)
        return self.size


@dataclass(frozen=True, slots=True)
class Tiles:
    """Give the tower the tiles of `size` that frames consist of, row by row. Further steps take the frames."""

    size: Size

    def measure(self, size: Size) -> Size:
        assert not (size[0] % self.size[0] or size[1] % self.size[1]), (self, size)
        return size


@dataclass(frozen=True, slots=True)
class Patches:
    """Give the tower patch vectors laid out as (channel, frame, y, x). Further steps take the frames.

    A patch has `size` pixels of `num_frames` frames; the last frame stands for one that is missing. The patches of a
    `group` (rows, columns) lie together. Groups, and patches in a group, are in row-major order.
    """

    size: Size
    group: tuple[int, int]
    num_frames: int

    def measure(self, size: Size) -> Size:
        return size

    @property
    def vector_size(self) -> int:
        return CHANNELS * self.num_frames * math.prod(self.size)

    def count_groups(self, size: Size) -> tuple[int, int]:
        """Return (rows, columns) of groups in frames of `size`, a multiple of the group's."""
        (rows, rest_h), (columns, rest_w) = (
            divmod(length, patch * group) for length, patch, group in zip(size, self.size, self.group, strict=True)
        )
        assert not rest_h and not rest_w, f"frames of {size} cannot be cut into {self}"
        return rows, columns

    def count(self, num_frames: int, size: Size) -> int:
        """Return the number of vectors that so many frames of `size` become."""
        return -(-num_frames // self.num_frames) * math.prod(self.count_groups(size)) * math.prod(self.group)


Step = Resize | Pad | Crop | Transpose | Split | Tiles | Patches
Chain = tuple[Step, ...]

_STEPS: dict[str, type[Step]] = {step.__name__: step for step in (Resize, Pad, Crop, Transpose, Split, Tiles, Patches)}
_PIXELS_OF_A_TAP = 16
"""A resizing has a table of weights, of up to 6 numbers of 8 bytes for each pixel along an axis."""


def walk(chain: Chain, size: Size) -> Iterator[tuple[Step, Size, Size]]:
    """Return the steps of a chain for frames of `size`, each with their size before and after it."""
    for step in chain:
        after = step.measure(size)
        yield step, size, after
        size = after


def measure_peak(chains: Sequence[Chain], size: Size) -> int:
    """Return the most pixels that a frame of `size` has before, within or after any step. A table of weights counts as
    the pixels that take as much memory."""
    peak = math.prod(size)
    for chain in chains:
        for step, before, after in walk(chain, size):
            peak = max(peak, math.prod(after))
            if isinstance(step, Resize):
                peak = max(peak, before[0] * after[1], _PIXELS_OF_A_TAP * max(*before, *after))
    return peak


def pack(chains: Sequence[Chain]) -> tuple[tuple[tuple[Any, ...], ...], ...]:
    """Return chains as nested tuples of plain values, which cross to other processes."""
    return tuple(tuple((type(step).__name__, *astuple(step)) for step in chain) for chain in chains)


def unpack(packed: Sequence[Sequence[Sequence[Any]]]) -> tuple[Chain, ...]:
    """Return the chains of `pack`."""
    return tuple(tuple(_STEPS[name](*fields) for name, *fields in chain) for chain in packed)


# --- pieces of chains that families share -----------------------------------------------------------------------------


def pad_to(size: Size, target: Size, color: tuple[int, int, int]) -> Chain:
    """Return the steps that put frames of `size` in the middle of `target`; none where that is their size."""
    if size == target:
        return ()
    (top, left) = ((side - length) // 2 for side, length in zip(target, size, strict=True))
    return (Pad(target, (top, left), color),)


def crop_center(size: Size, target: Size) -> Chain:
    """Return the steps that cut the middle of `target` out of frames of `size`; smaller ones are padded with black."""
    large = max(size[0], target[0]), max(size[1], target[1])
    padding = pad_to(size, large, (0, 0, 0))
    if large == target:
        return padding
    return (*padding, Crop(target, ((large[0] - target[0]) // 2, (large[1] - target[1]) // 2)))
