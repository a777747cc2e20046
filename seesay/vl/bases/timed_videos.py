"""The base of families whose decoders take each time step of a video as a picture, with its time beside it as text."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.images import smart_resize
from seesay.values import Expansion, MediaSize, Modality
from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily, PatchSettings, find_target
from seesay.vl.family import Features, make_expansion

Piece = tuple[list[int], bool]
"""Token ids, and whether they take embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSettings(PatchSettings):
    """Sizes where `min_pixels` and `max_pixels` are those of all frames together; a picture counts as the frames of one
    time step. `max_frame_pixels`, when set, bounds each of them, too."""

    max_frame_pixels: int | None = None

    @property
    def limits(self) -> list[int | None]:
        return [*super(ClipSettings, self).limits, self.max_frame_pixels]

    def max_pixels_of(self, options: Mapping[str, int]) -> int:
        most = max(self.max_pixels, self.min_pixels) // self.temporal_patch_size
        return options.get("max_pixels", max(most, options.get("min_pixels", 0)))

    def fit(self, size: MediaSize, options: Mapping[str, int]) -> tuple[int, int]:
        """See `PatchSettings.fit`. Options `min_pixels` and `max_pixels` are those of one frame, `total_pixels` those
        of all."""
        num_frames = max(size.num_frames, self.temporal_patch_size)
        most = options.get("total_pixels", self.max_pixels)
        if self.max_frame_pixels is not None:
            share = min(self.max_frame_pixels, most // num_frames)
            most = max(share, int(self.min_pixels * 1.05)) * num_frames
        least = options["min_pixels"] * num_frames if "min_pixels" in options else self.min_pixels
        if "min_pixels" in options and "total_pixels" not in options:
            most = max(most, least)
        most = min(most, options.get("max_pixels", most) * num_frames)
        if "min_pixels" not in options:
            least = min(least, most)
        if least > options.get("max_pixels", least) * num_frames:
            message = f"min_pixels={options['min_pixels']} is above max_pixels={options['max_pixels']}"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "min_pixels")
        if least > most:
            message = (
                f"min_pixels={options['min_pixels']} of {num_frames} frames is above the {most} pixels that they may "
                "have together"
            )
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "min_pixels")
        height, width = own = find_target(size, options)
        if min(height, width) < self.factor:
            grow = max(self.factor / height, self.factor / width)
            height, width = int(height * grow), int(width * grow)
        return smart_resize(
            height,
            width,
            factor=self.factor,
            min_pixels=least,
            max_pixels=most,
            num_frames=num_frames,
            temporal_factor=self.temporal_patch_size,
            own=own,
        )


class TimedVideoFamily(DynamicResolutionFamily):
    """The measures of a video have the `times` of its time steps in seconds."""

    @abstractmethod
    def find_times(self, times_s: Sequence[float], num_steps: int) -> tuple[float, ...]:
        """Return the time of each step of a video whose frames are shown at these times, in seconds."""

    @abstractmethod
    def write_step(self, time_s: float, rows: Piece) -> tuple[Piece, ...]:
        """Return the tokens of a time step: `rows` are those that take its embeddings."""

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        measures = super().measure(modality, size, options)
        if modality is Modality.IMAGE:
            return measures
        return {**measures, "times": self.find_times(size.timestamps_s, measures["grid"][0])}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        """Return for a video the rows of each time step with its time as text, all between the tokens of the item."""
        if modality is Modality.IMAGE:
            return super().expand(modality, measures)
        steps, *grid = measures["grid"]
        assert len(measures["times"]) == steps, "each time step has a time"
        start, _, end = self.item_tokens[modality]
        rows = ([self.row_token] * (math.prod(grid) // self.merge_size**2), True)
        pieces = [piece for time_s in measures["times"] for piece in self.write_step(time_s, rows)]
        return make_expansion(([start], False), *pieces, ([end], False))

    @property
    def row_token(self) -> int:
        """The token whose place takes a row of a video."""
        return self.item_tokens[Modality.VIDEO][1]
