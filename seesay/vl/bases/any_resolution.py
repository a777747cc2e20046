"""The base of families that show a tower a picture as a whole, then as tiles of the one of several resolutions that
fits it best."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.tiles import fit_inside, select_resolution
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Tiles, pad_to
from seesay.vl.bases.arrangement import Rows, join_tiles, number_rows, unpad
from seesay.vl.bases.pixels import read_square
from seesay.vl.bases.projected_tower import ProjectedTowerFamily, make_weights
from seesay.vl.family import MAX_TILES, Features, make_expansion

NEWLINE = -1
"""The row `image_newline` in an arrangement."""


class AnyResolutionFamily(ProjectedTowerFamily):
    """Features: tiles [T, S, S, 3], S being the tower's `image_size`, of which the first is the whole picture, or
    frames; the arrangement of their rows; and the plan's measures, with `cut` (rows, columns) of the other tiles and
    the picture's `original` (height, width)."""

    modalities: tuple[Modality, ...] = (Modality.IMAGE,)
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {Modality.IMAGE: ("max_dynamic_patch",)}
    learned_rows = ("image_newline",)
    weights = make_weights(learned_rows)

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        self.grid = (self.grid_side, self.grid_side)
        self.tile = (self.image_size, self.image_size)
        size = self.settings.get("size", self.image_size)
        edge = size.get("shortest_edge") if isinstance(size, dict) else size
        for name, square in (("size", size if edge is None else edge), ("crop_size", self.settings.get("crop_size"))):
            if square is not None and read_square(square, checkpoint.path, name) != self.tile:
                raise CheckpointError(
                    f"{checkpoint.path}: processor setting {name}={square} is not the tower's {self.image_size}"
                )
        self._resolutions = _read_resolutions(checkpoint, self.settings, self.tile)

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self.pixels.as_json(), "tile": self.tile, "resolutions": self._resolutions}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, "max_dynamic_patch": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """With `max_dynamic_patch` a picture is cut into at most so many tiles; 1 leaves the whole picture alone."""
        max_tiles = options.get("max_dynamic_patch", MAX_TILES)
        allowed = [each for each in self._resolutions if 1 < max_tiles >= math.prod(each) // math.prod(self.tile)]
        original = (size.height, size.width)
        if not allowed:
            return {"num_tiles": 1, "cut": (0, 0), "resized": self.tile, "original": original}
        height, width = select_resolution(original, allowed)
        cut = (height // self.tile[0], width // self.tile[1])
        return {"num_tiles": 1 + cut[0] * cut[1], "cut": cut, "resized": (height, width), "original": original}

    @abstractmethod
    def arrange(self, whole: Rows, lines: Rows) -> Features:
        """Return the features of an arrangement of the rows of the `whole` picture and of its tiles, `lines`: one empty
        line for a picture that is not cut, behind whose rows stands one newline."""

    def _arrange(self, measures: Features) -> Features:
        whole = number_rows(0, self.grid)
        lines = join_tiles(whole.size, measures["cut"], self.grid)
        if not lines.size:
            return self.arrange(whole, number_rows(NEWLINE, (1, 1))[:, :0])
        digits = getattr(self.checkpoint.model_config, "unpadding_digits", 7)
        return self.arrange(whole, unpad(lines, measures["original"], num_digits=digits))

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self.image_token] * len(self._arrange(measures)["rows"]), True))

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * math.prod(self.grid)

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        resize, tiles = self.pixels.resize, Tiles(self.tile)
        whole = (resize(self.tile), tiles)
        if measures["cut"] == (0, 0):
            return (whole,)
        fitted = fit_inside((size.height, size.width), measures["resized"])
        return whole, (resize(fitted), *pad_to(fitted, measures["resized"], (0, 0, 0)), tiles)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        return {**super().preprocess(media, measures), **self._arrange(measures)}

    def largest_size(self) -> tuple[int, int] | None:
        return max(self._resolutions, key=math.prod)


def _read_resolutions(
    checkpoint: Checkpoint, settings: Mapping[str, object], tile: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """Return the (height, width) of the resolutions at which pictures are cut into tiles. Raises `CheckpointError` for
    some that are not made of tiles, and where the processor's settings are not those of config.json."""
    given = checkpoint.model_config.image_grid_pinpoints
    where = f"{checkpoint.path}: image_grid_pinpoints"
    if settings.get("image_grid_pinpoints", given) != given:
        raise CheckpointError(f"{where} of the processor are not those of config.json")
    if not isinstance(given, list) or not given:
        raise CheckpointError(f"{where} must be a list of [height, width], got {str(given)[:80]}")
    for each in given:
        if not is_made_of_tiles(each, tile):
            raise CheckpointError(
                f"{where} must be [height, width] of 1 to {MAX_TILES} tiles of {tile}, got {str(each)[:80]}"
            )
    return tuple((height, width) for height, width in given)


def is_made_of_tiles(size: object, tile: tuple[int, int]) -> bool:
    """Return whether a value is a pair of sides, in the order of those of `tile`, that 1 to `MAX_TILES` tiles fill."""
    if not isinstance(size, list) or len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
        return False
    return not (size[0] % tile[0] or size[1] % tile[1] or math.prod(size) > MAX_TILES * math.prod(tile))
