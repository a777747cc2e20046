"""The base of families whose pixels are resized in float32, and neither rounded nor clamped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from seesay.processors.media.images import cut_patches, resize_as_float
from seesay.values import DecodedMedia, MediaSize, Modality
from seesay.values.frame_chain import Crop, Patches, Resize
from seesay.vl.family import Family, Features
from seesay.vl.media_plan import MediaPlan

_FLOAT_BYTES = 4


class FloatPixelsFamily(Family):
    """Features: patches float32 [P, size] or frames float32 [N, h, w, 3], and the plan's measures. The one chain of an
    item resizes its frames, crops them or not, and cuts them into patches or makes a tile of each.

    antialiases: the filter of frames that are scaled down is as wide as the pixels that become one."""

    antialiases: ClassVar[bool] = True

    def plan_media(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> MediaPlan:
        planned = super().plan_media(modality, size, options)
        return replace(planned, peak_pixels=_FLOAT_BYTES * planned.peak_pixels)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        """Resize in float32, with what bicubic interpolation overshoots: the steps of `chain_frames`, unrounded."""
        [(resize, *crops, last)] = self.chain_frames(media.modality, media.size, measures)
        assert isinstance(resize, Resize) and resize.resample != "lanczos"
        frames = []
        for frame in media.frames:  # one by one: float32 takes four times the memory of what was decoded
            [pixels] = resize_as_float(
                frame[None], resize.size, resample=resize.resample, clamps=False, antialias=self.antialiases
            )
            for crop in crops:
                assert isinstance(crop, Crop)
                pixels = pixels[crop.at[0] : crop.at[0] + crop.size[0], crop.at[1] : crop.at[1] + crop.size[1]]
            frames.append(pixels)
        pixels = np.stack(frames)
        return {**measures, "pixels": cut_patches(pixels, last) if isinstance(last, Patches) else pixels}
