"""The HD transform (arXiv 2404.06512, section 3.2): a picture fills the width, or the height of a tall one, of as many
tiles as it may have, and is padded with white."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from seesay.values import MediaSize
from seesay.values.frame_chain import Chain, Pad, Tiles, Transpose, pad_to
from seesay.vl.bases.pixels import PixelSettings
from seesay.vl.family import Features

_WHITE = (255, 255, 255)
OPTION = "max_dynamic_patch"
"""The option of a picture that says how many tiles it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HDTransform:
    """tile: the side of a tile in pixels. max_tiles: of a picture without the option. padding: where white goes to, on
    both sides or behind the picture. is_capped: a picture has at most as many tiles in its longer side as its own
    pixels fill."""

    tile: int
    max_tiles: int
    padding: Literal["both", "behind"] = "both"
    is_capped: bool = False

    def measure(self, size: MediaSize, options: Mapping[str, int]) -> Features:
        """Return `num_tiles`, with one for the whole picture; `resized` (height, width) in pixels, without padding; and
        `joined` (rows, columns) of tiles. A thin picture becomes at least a pixel wide, where published code fails."""
        longer, shorter = max(size.height, size.width), min(size.height, size.width)
        ratio, max_tiles = longer / shorter, options.get(OPTION, self.max_tiles)
        length = 1
        while (length + 1) * math.ceil((length + 1) / ratio) <= max_tiles:
            length += 1
        if self.is_capped:
            length = min(length, math.ceil(longer / self.tile))
        scaled = (max(1, int(length * self.tile / ratio)), length * self.tile)
        tiles, is_tall = (math.ceil(scaled[0] / self.tile), length), size.width < size.height
        return {
            "num_tiles": math.prod(tiles) + 1,
            "resized": scaled[::-1] if is_tall else scaled,
            "joined": tiles[::-1] if is_tall else tiles,
        }

    def make_chain(self, size: MediaSize, measures: Features, pixels: PixelSettings) -> Chain:
        """Return the steps to the tiles. A tall picture is processed lying, as published: rounding depends on it."""
        turn: Chain = (Transpose(),) if size.width < size.height else ()
        height, width = measures["resized"][::-1] if turn else measures["resized"]
        rows, _ = measures["joined"][::-1] if turn else measures["joined"]
        target = (rows * self.tile, width)
        if self.padding == "both":
            padding = pad_to((height, width), target, _WHITE)
        else:
            padding = (Pad(target, (0, 0), _WHITE),) if target != (height, width) else ()
        return (*turn, pixels.resize((height, width)), *padding, *turn, Tiles((self.tile, self.tile)))

    def largest_size(self) -> tuple[int, int]:
        """Return the (height, width) of the costliest picture."""
        return self.max_tiles * self.tile, self.tile
