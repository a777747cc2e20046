"""The base of families without media: the same stream with no pictures in it."""

from __future__ import annotations

from collections.abc import Mapping

from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain
from seesay.vl.family import Family, Features
from seesay.vl.weight_map import BARE_DECODER, WeightMap


class TextFamily(Family):
    """A decoder without a tower, whose tensors are named as Llama's unless a subclass says otherwise."""

    weights = WeightMap(decoder={**BARE_DECODER, "model.": "", "lm_head.": "lm_head."})

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {}

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        raise AssertionError("a text model has no media to preprocess")

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        raise AssertionError("a text model has no media to measure")

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        raise AssertionError("a text model has no media to expand")

    def num_units(self, measures: Features) -> int:
        raise AssertionError("a text model has no media to encode")
