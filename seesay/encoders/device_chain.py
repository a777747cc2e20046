"""Runs the chains of `seesay.values.frame_chain` on a GPU.

A chain is compiled for a size of frames to the operations of `seesay.kernels.resize`: the last resizing of the height
and the cutting are one of them, and the tables of all resizings are uploaded together with the frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seesay.device.lanczos import has_lanczos
from seesay.device.transfers import upload
from seesay.values.frame_chain import (
    Chain,
    Crop,
    Library,
    Pad,
    Patches,
    Resample,
    Resize,
    Size,
    Split,
    Tiles,
    Transpose,
    measure_peak,
    unpack,
)

if TYPE_CHECKING:
    from seesay.kernels.resize import Taps

PIXELS_AT_ONCE = 1 << 24
"""Frames of a video are processed in parts of at most so many pixels, which bounds memory for videos of any length."""

Axis = tuple[int, int, Resample, Library]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Resize the width, by the taps with this number."""

    taps: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """Resize the height."""

    taps: int


@dataclass(frozen=True, slots=True)
class _Emit:
    """Resize the height and write patch vectors. `split`: of tiles of this size, of which the tower sees `seen`."""

    taps: int
    layout: Patches
    split: Size | None = None
    seen: Size | None = None


Operation = _Columns | _Rows | _Emit | Pad | Crop | Transpose | Split


@dataclass(frozen=True, slots=True)
class _Piece:
    """Output of a chain at one place. A frame counts as `num_copies` of `size`."""

    layout: Patches
    size: Size
    num_copies: int

    def count(self, num_frames: int) -> int:
        return self.layout.count(num_frames * self.num_copies, self.size)


@dataclass(frozen=True, slots=True)
class Program:
    """The operations of chains for frames of one size. peak: see `measure_peak`."""

    axes: tuple[Axis, ...]
    chains: tuple[tuple[Operation, ...], ...]
    pieces: tuple[_Piece, ...]
    peak: int

    @property
    def frames_at_once(self) -> int:
        """Frames of a video that are processed together: a multiple of those in a patch."""
        step = max(piece.layout.num_frames for piece in self.pieces)
        return max(1, PIXELS_AT_ONCE // (step * self.peak)) * step


def _copied_axis(size: int) -> Axis:
    """Return the axis that keeps its size, whatever the step asks for."""
    return size, size, "bicubic", "torchvision"


class _Compiler:
    def __init__(self, patch_size: Size) -> None:
        self._patch_size = patch_size
        self.axes: dict[Axis, int] = {}
        self.pieces: list[_Piece] = []

    def _find_taps(self, size: int, new_size: int, step: Resize | None = None) -> int:
        axis = _copied_axis(size)
        if step is not None and size != new_size:
            axis = (size, new_size, step.resample, step.library)
        return self.axes.setdefault(axis, len(self.axes))

    def compile(self, chain: Chain, size: Size) -> tuple[Operation, ...]:
        operations: list[Operation] = []
        rows: int | None = None  # a resizing of the height that is not done yet
        num_copies = 1
        for step in chain:
            if isinstance(step, (Tiles, Patches)):
                operations.append(self._emit(step, size, rows, num_copies))
                continue
            if rows is not None:
                operations.append(_Rows(rows))
                rows = None
            after = step.measure(size)
            match step:
                case Resize():
                    if size[0] != after[0]:
                        rows = self._find_taps(size[0], after[0], step)
                    if rows is not None and step.begins_with_rows(size):
                        operations.append(_Rows(rows))
                        rows = None
                    if size[1] != after[1]:
                        operations.append(_Columns(self._find_taps(size[1], after[1], step)))
                case Split():
                    num_copies *= size[0] // after[0] * (size[1] // after[1])
                    operations.append(step)
                case _:
                    operations.append(step)
            size = after
        return tuple(operations)

    def _emit(self, step: Tiles | Patches, size: Size, rows: int | None, num_copies: int) -> _Emit:
        if rows is None:
            rows = self._find_taps(size[0], size[0])
        if isinstance(step, Patches):
            self.pieces.append(_Piece(step, size, num_copies))
            return _Emit(rows, step)
        (tile_h, tile_w), (patch_h, patch_w) = step.size, self._patch_size
        layout = Patches(self._patch_size, (tile_h // patch_h, tile_w // patch_w), 1)
        seen = (layout.group[0] * patch_h, layout.group[1] * patch_w)
        if seen == step.size:
            self.pieces.append(_Piece(layout, size, num_copies))
            return _Emit(rows, layout)
        num_tiles = size[0] // tile_h * (size[1] // tile_w)
        self.pieces.append(_Piece(layout, seen, num_copies * num_tiles))
        self._find_taps(seen[0], seen[0])
        return _Emit(rows, layout, split=step.size, seen=seen)


@lru_cache(maxsize=1024)
def compile_chains(chains: tuple[Chain, ...], size: Size, patch_size: Size) -> Program:
    """Return the operations of chains for frames of `size`. `patch_size` is that of the tower, for tiles."""
    compiler = _Compiler(patch_size)
    operations = tuple(compiler.compile(chain, size) for chain in chains)
    return Program(tuple(compiler.axes), operations, tuple(compiler.pieces), measure_peak(chains, size))


def find_program(item: Mapping[str, Any], patch_size: Size) -> Program:
    """Return the program of features `frames` and `chains`."""
    height, width = item["frames"].shape[1:3]
    return compile_chains(unpack(item["chains"]), (height, width), patch_size)


class ChainRunner:
    """Runs programs on `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.levels = torch.arange(256, dtype=torch.uint8).repeat(3, 1).to(device)

    def run(self, program: Program, frames: Any, table: Tensor, out: Sequence[Tensor]) -> None:
        """Write table[channel, value] for each value of the patch vectors of frames uint8 [N, H, W, 3] on the host into
        `out`, a tensor for each piece. `table` is [3, 256]."""
        taps = [_make_axis_taps(axis) for axis in program.axes]
        tables = [array for axis in taps for array in (axis.starts, axis.weights)]
        for first in range(0, len(frames), program.frames_at_once):
            part = frames[first : first + program.frames_at_once]
            there, *uploaded = upload([part, *tables], self._device)
            on_device = [
                axis._replace(starts=starts, weights=weights)
                for axis, starts, weights in zip(taps, uploaded[::2], uploaded[1::2], strict=True)
            ]
            places = iter(
                vectors[piece.count(first) :][: piece.count(len(part))]
                for piece, vectors in zip(program.pieces, out, strict=True)
            )
            _Run(program, on_device, self.levels, table).run(there, places)


@dataclass(frozen=True, slots=True)
class _Run:
    """Parameters shared by the operations on one part of the frames."""

    program: Program
    taps: Sequence[Taps]
    levels: Tensor
    table: Tensor

    def run(self, frames: Tensor, out: Iterator[Tensor]) -> None:
        """Run all chains on `frames`, and write the patch vectors into the tensors of `out`."""
        for operations in self.program.chains:
            current = frames
            for operation in operations:
                if isinstance(operation, _Emit):
                    self.emit(current, operation, next(out))
                else:
                    current = self.apply(current, operation)

    def apply(self, frames: Tensor, operation: Operation) -> Tensor:
        from seesay.kernels.resize import resize_columns, resize_rows

        match operation:
            case _Columns(number):
                return resize_columns(frames.contiguous(), self.taps[number])
            case _Rows(number):
                return resize_rows(frames, self.taps[number], self.levels)
            case Pad(size, (top, left), color):
                canvas = frames.new_empty(len(frames), *size, 3)
                for channel, value in enumerate(color):
                    canvas[..., channel].fill_(value)
                canvas[:, top : top + frames.shape[1], left : left + frames.shape[2]] = frames
                return canvas
            case Crop((height, width), (top, left)):
                return frames[:, top : top + height, left : left + width]
            case Transpose():
                return frames.transpose(1, 2)
            case Split(size):
                return _split(frames, size)
        raise AssertionError(operation)

    def emit(self, frames: Tensor, operation: _Emit, out: Tensor) -> None:
        from seesay.kernels.resize import cut_patches, resize_rows

        taps = self.taps[operation.taps]
        if operation.split is not None and operation.seen is not None:
            if frames.shape[1] != len(taps.starts):
                frames = resize_rows(frames, taps, self.levels)
            height, width = operation.seen
            frames = _split(frames, operation.split)[:, :height, :width]
            taps = self.taps[self.program.axes.index(_copied_axis(height))]
        cut_patches(frames, taps, self.table, operation.layout, out)


def _make_axis_taps(axis: Axis) -> Taps:
    from seesay.kernels.resize import PILLOW_PRECISION, make_taps

    old, new, resample, library = axis
    is_pillow = library == "pillow" or (resample == "lanczos" and not has_lanczos())
    return make_taps(old, new, resample, PILLOW_PRECISION if is_pillow else None)


def _split(frames: Tensor, size: Size) -> Tensor:
    """Return the tiles of `size` that frames consist of, row by row."""
    count, height, width, channels = frames.shape
    if (height, width) == size:
        return frames
    lines = frames.reshape(count, height // size[0], size[0], width // size[1], size[1], channels)
    return lines.transpose(2, 3).reshape(-1, *size, channels)
