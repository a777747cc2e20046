"""The base of families whose pixels are resized in float32, and neither rounded nor clamped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seesay.processors.media.images import cut_patches, resize_as_float
from seesay.values import DecodedMedia, MediaSize, Modality
from seesay.values.frame_chain import Patches, Resize
from seesay.vl.family import Family, Features
from seesay.vl.media_plan import MediaPlan

_FLOAT_BYTES = 4


class FloatPixelsFamily(Family):
    """Features: patches float32 [P, size], and the plan's measures. The one chain of an item resizes its frames and
    cuts them into patches."""

    def plan_media(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> MediaPlan:
        planned = super().plan_media(modality, size, options)
        return replace(planned, peak_pixels=_FLOAT_BYTES * planned.peak_pixels)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        """Resize in float32, with what bicubic interpolation overshoots: the steps of `chain_frames`, unrounded."""
        [(resize, cut)] = self.chain_frames(media.modality, media.size, measures)
        assert isinstance(resize, Resize) and isinstance(cut, Patches) and resize.resample != "lanczos"
        pixels = resize_as_float(media.frames, resize.size, resample=resize.resample, clamps=False)
        return {**measures, "pixels": cut_patches(pixels, cut)}
