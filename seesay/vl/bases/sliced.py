"""The base of MiniCPM-V's families (arXiv 2408.01800, section 3.1): a picture as a whole and in slices of about the
same area, row by row, with its number before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from seesay.processors.media.images import MAX_ASPECT_RATIO
from seesay.processors.media.slices import choose_grid, fit_area, fit_slices
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Patches, Size, Split
from seesay.vl.bases.pixels import PixelSettings
from seesay.vl.family import Family, Features


class SlicedFamily(Family):
    """Features: the patches of the whole picture, then of its slices, row by row, or frames; the plan's measures, with
    the `grids` (height, width) of these in patches, and `cut`, the (rows, columns) of slices.

    A family sets, before anything else is asked: `pixels`; `side`, that of the square that has a slice's area; `patch`,
    and `merge`, of the sides of patches and of what becomes one row, in patches; `max_slices`; `uses_id`; and `tags`,
    the texts around a picture's number.
    """

    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {Modality.IMAGE: ("max_slice_nums", "use_image_id")}
    switches = ("use_image_id",)
    frame_options: ClassVar[Mapping[str, int]] = {"max_slice_nums": 2, "use_image_id": False}
    pixels: PixelSettings
    side: int
    patch: int
    merge: int = 1
    max_slices: int
    uses_id: bool
    tags: tuple[str, str]

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        slices = [self.side, self.patch, self.merge, self.max_slices, self.uses_id]
        return {"pixels": self.pixels.as_json(), "slices": slices}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return options if modality is Modality.VIDEO else {**options, "max_slice_nums": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        original = (size.height, size.width)
        cut = choose_grid(original, self.side, max_slices=options.get("max_slice_nums", self.max_slices))
        whole = self.fit_whole(original, enlarges=cut is None)
        grids, resized = [self.find_grid(whole)], whole
        if cut is not None:
            resized = fit_slices(original, cut, self.side, self.patch * self.merge)
            grids += [self.find_grid((resized[0] // cut[0], resized[1] // cut[1]))] * math.prod(cut)
        return {
            "num_tiles": len(grids),
            "resized": resized,
            "whole": whole,
            "cut": cut or (0, 0),
            "grids": tuple(grids),
            "has_number": bool(options.get("use_image_id", self.uses_id)),
        }

    def fit_whole(self, size: Size, *, enlarges: bool) -> Size:
        """See `fit_area`."""
        return fit_area(size, self.side, self.patch * self.merge, enlarges=enlarges)

    def find_grid(self, size: Size) -> Size:
        """Return the (height, width) in patches of a picture."""
        return size[0] // self.patch, size[1] // self.patch

    def spell_number(self, number: int) -> list[int]:
        """Return the tokens of the number of a picture in its prompt."""
        return self.tokenizer.encode(f"{self.tags[0]}{number}{self.tags[1]}")

    def number(self, expansion: Expansion, number: int) -> Expansion:
        zero = self.spell_number(0)
        if number == 0 or expansion.token_ids[: len(zero)].tolist() != zero:
            return expansion
        ids = self.spell_number(number)
        return Expansion(
            token_ids=np.concatenate((np.asarray(ids, dtype=np.int64), expansion.token_ids[len(zero) :])),
            takes_embedding=np.concatenate(
                (np.zeros(len(ids), dtype=np.bool_), expansion.takes_embedding[len(zero) :])
            ),
        )

    def num_units(self, measures: Features) -> int:
        return sum(map(math.prod, measures["grids"]))

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        resize, patches = self.pixels.resize, Patches((self.patch, self.patch), (1, 1), 1)
        whole = (resize(measures["whole"]), patches)
        if measures["cut"] == (0, 0):
            return (whole,)
        height, width = (side // count for side, count in zip(measures["resized"], measures["cut"], strict=True))
        return whole, (resize(measures["resized"]), Split((height, width)), patches)

    def largest_size(self) -> tuple[int, int] | None:
        """Slices that are a little longer than one and a half, two and a half, … units are rounded up the most. Those
        of thin pictures are one unit wide."""
        unit = self.patch * self.merge
        sides = [int((number + 0.5) * unit) + 1 for number in range(self.side // unit + 1)]
        shapes = [(height, max(1, self.side**2 // height)) for height in sides]
        rows = range(1, self.max_slices + 1)
        grids = [(count, self.max_slices // count) for count in rows if self.max_slices % count == 0]
        sizes = [(grid[0] * shape[0], grid[1] * shape[1]) for grid in grids for shape in shapes]
        sizes += [(self.side * grid[0], self.side * grid[1]) for grid in grids]
        area, ratios = self.max_slices * self.side**2, range(1, MAX_ASPECT_RATIO + 1)
        sizes += [(int(math.sqrt(area * ratio)), max(1, int(math.sqrt(area / ratio)))) for ratio in ratios]
        return max([*sizes, *((width, height) for height, width in sizes)], key=self._count_patches)

    def _count_patches(self, size: Size) -> int:
        return self.num_units(self.measure(Modality.IMAGE, MediaSize(num_frames=1, height=size[0], width=size[1]), {}))
