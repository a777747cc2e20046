"""Runs the chains of `seesay.values.frame_chain` on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from seesay.processors.media.images import Frames, cut_patches, resize
from seesay.values.frame_chain import Chain, Crop, Pad, Patches, Resize, Split, Tiles, Transpose


def run_chains(frames: Frames, chains: Sequence[Chain]) -> Frames:
    """Return what the tower takes of frames uint8 [N, H, W, 3], in memory of its own: tiles uint8 [T, h, w, 3] or
    patch vectors uint8 [P, size], those of one chain after another."""
    pieces = [piece for chain in chains for piece in _run(frames, chain)]
    if len(pieces) > 1:
        return np.concatenate(pieces)
    [piece] = pieces
    return piece.copy() if np.may_share_memory(piece, frames) else piece


def _run(frames: Frames, chain: Chain) -> Iterator[Frames]:
    for step in chain:
        match step:
            case Resize(size, resample, library):
                frames = resize(np.ascontiguousarray(frames), size, resample=resample, library=library)
            case Pad(size, (top, left), color):
                canvas = np.empty((len(frames), *size, 3), dtype=np.uint8)
                canvas[...] = np.asarray(color, dtype=np.uint8)
                canvas[:, top : top + frames.shape[1], left : left + frames.shape[2]] = frames
                frames = canvas
            case Crop((height, width), (top, left)):
                frames = frames[:, top : top + height, left : left + width]
            case Transpose():
                frames = frames.swapaxes(1, 2)
            case Split(size):
                frames = _cut_tiles(frames, size)
            case Tiles(size):
                yield _cut_tiles(frames, size)
            case Patches():
                yield cut_patches(frames, step)


def _cut_tiles(frames: Frames, size: tuple[int, int]) -> Frames:
    (count, height, width, channels), (high, wide) = frames.shape, size
    lines = frames.reshape(count, height // high, high, width // wide, wide, channels).transpose(0, 1, 3, 2, 4, 5)
    return np.ascontiguousarray(lines.reshape(-1, high, wide, channels))
