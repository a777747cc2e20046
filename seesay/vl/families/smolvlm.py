"""SmolVLM2: Idefics3 with videos, whose frames are pictures of one tile, each behind its time (arXiv 2504.05299)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.tiles import fit_longest_edge
from seesay.processors.text.number_words import spell_number
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Resample
from seesay.vl.bases.pixels import PixelSettings, read_longest_edge, read_processor
from seesay.vl.families.idefics3 import DEFAULT_EDGES, Idefics3
from seesay.vl.family import Features, Wording, make_expansion
from seesay.vl.published import Published


class SmolVLM(Idefics3):
    """Features of a video: a tile of each frame, or frames; and the plan's measures, with the whole `seconds` of its
    frames and the `duration` of the video in whole seconds."""

    architectures = ("SmolVLMForConditionalGeneration",)
    published = (
        Published(
            decoder="llama",
            names=(
                "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
                "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
                "HuggingFaceTB/SmolVLM2-256M-Video-Instruct",
            ),
        ),
    )
    modalities = (Modality.IMAGE, Modality.VIDEO)
    options = {**Idefics3.options, Modality.VIDEO: ("size",)}
    processor = "SmolVLMImageProcessor"

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        where = checkpoint.path
        settings = read_processor(checkpoint, "video_processor")
        self._video_pixels = PixelSettings.read(settings, where, processor="SmolVLMVideoProcessor")
        if self._video_pixels.statistics != self.pixels.statistics:
            raise CheckpointError(f"{where}: pictures and videos are normalized differently: not supported")
        sampling = settings.get("video_sampling") or {}
        size = {"size": sampling["video_size"]} if "video_size" in sampling else {}
        self._video_edge, side = (
            read_longest_edge({**size, **settings}, where, name, edge) for name, edge in DEFAULT_EDGES.items()
        )
        if side != self.side:
            raise CheckpointError(f"{where}: frames of max_image_size={side} must be tiles of {self.side}")
        self.default_sampling = _read_sampling(sampling, where)
        self._stand_in = self.token_text(self.image_token)
        video = tokenizer.named_tokens.get("video_token", "<video>")
        self._markers = {**self._markers, Modality.VIDEO: video}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {**super().preprocessing, "video": self._video_pixels.as_json(), "video_edge": self._video_edge}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        if modality is Modality.IMAGE:
            return super().measure(modality, size, options)
        duration = size.frame_interval_s * size.num_frames or size.timestamps_s[-1]
        return {
            "num_tiles": size.num_frames,
            "cut": (0, 0),
            "fitted": fit_longest_edge((size.height, size.width), options.get("size", self._video_edge)),
            "resized": self.tile,
            "seconds": tuple(map(int, size.timestamps_s)),
            "duration": int(round(duration, 6)),
        }

    def word(self, modality: Modality, measures: Features | None) -> Wording | None:
        if modality is Modality.IMAGE:
            return None
        if measures is None:
            return Wording(before="", marker=self._stand_in, after="")
        count = spell_number(measures["num_tiles"])
        duration = timedelta(seconds=measures["duration"])
        intro = f"You are provided the following series of {count} frames from a {duration} [H:MM:SS] video.\n"
        return Wording(before=intro + _write_time(measures["seconds"][0]), marker=self._stand_in, after="\n\n")

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        if modality is Modality.IMAGE:
            return super().expand(modality, measures)
        writer = self.writer
        pieces = writer.write_whole("")
        for second in measures["seconds"][1:]:
            pieces += writer.write_whole(writer.fake + _write_time(second))
        return make_expansion(*pieces, writer.write_end())

    def resample_of(self, modality: Modality) -> Resample:
        return self._video_pixels.resample if modality is Modality.VIDEO else self.pixels.resample


def _write_time(second: int) -> str:
    return f"\nFrame from {second // 60:02d}:{second % 60:02d}:"


def _read_sampling(sampling: Mapping[str, Any], where: object) -> Mapping[str, Any]:
    """Return the options of setting `video_sampling`: a rate, and the most frames. Raises `CheckpointError` for values
    that are not above 0."""
    found: dict[str, Any] = {}
    for name, kinds in (("fps", (int, float)), ("max_frames", (int,))):
        value = sampling.get(name)
        if value is None:
            continue
        if type(value) not in kinds or not 0 < value < 1e9:
            raise CheckpointError(f"{where}: processor setting video_sampling.{name}={str(value)[:40]} must be above 0")
        found[name] = value
    return {**found, "min_frames": 1} if found else {}
