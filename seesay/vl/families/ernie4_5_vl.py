"""ERNIE-4.5-VL (Baidu 2025): a mixture of experts in which pictures and videos go through experts of their own, behind
a tower that joins two frames of a video to one; the time of each frame is drawn into it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.checkpoint import Checkpoint, read_bytes
from seesay.errors import CheckpointError
from seesay.llm.models.spec import MediaRowsSpec
from seesay.processors.media.draw_times import check_font, draw_times
from seesay.processors.text.tokenizer import Tokenizer
from seesay.system.hashing import digest
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily, PatchSettings
from seesay.vl.bases.pixels import read_count, read_positive, read_processor
from seesay.vl.family import Backbone, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import BARE_DECODER, WeightMap

if TYPE_CHECKING:
    from seesay.encoders.towers.packed_layout import PackedVisionConfig

_FRAMES = 2
"""Frames that become one."""


class ErnieVL(DynamicResolutionFamily):
    """Experts from the number of those of text on are those of media. The tokens before and behind an item go through
    them, too."""

    architectures = ("Ernie4_5_VLMoeForConditionalGeneration",)
    published = (
        Published(
            decoder="ernie4_5_vl_moe_text",
            names=("baidu/ERNIE-4.5-VL-28B-A3B-PT", "baidu/ERNIE-4.5-VL-424B-A47B-PT"),
        ),
    )
    default_sizes = {
        Modality.IMAGE: {"shortest_edge": 56 * 56, "longest_edge": 6177 * 28 * 28},
        Modality.VIDEO: {"shortest_edge": 299 * 28 * 28, "longest_edge": 1196 * 28 * 28},
    }
    weights = WeightMap(
        decoder={
            **{f"model.{name}": name for name in BARE_DECODER},
            "model.language_model.": "",
            "lm_head.": "lm_head.",
        },
        tower={
            f"{prefix}{name}": new
            for prefix in ("", "model.")
            for name, new in {
                "vision_model.": "",
                "vision_tower.": "",
                "vision_model.ln.": "merger.norm.",
                "vision_tower.ln.": "merger.norm.",
                "vision_model.patch_embed.proj.": "patch_embed.",
                "vision_tower.patch_embed.proj.": "patch_embed.",
                "resampler_model.": "merger.",
            }.items()
        },
        decoder_patterns=(
            (r"\.mlp\.moe_statics\.e_score", ".mlp.gate.e_score"),
            (r"\.mlp\.gate\.weight_1$", ".media.mlp.gate.weight"),
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        count = checkpoint.text_config.moe_num_experts

        def place(found: re.Match[str]) -> str:
            number = int(found[1])
            return f".mlp.experts.{number}." if number < count else f".media.mlp.experts.{number - count}."

        patterns = (*type(self).weights.decoder_patterns, (r"\.mlp\.experts\.(\d{1,6})\.", place))
        self.weights = replace(type(self).weights, decoder_patterns=patterns)
        super().__init__(checkpoint, tokenizer)
        merged = checkpoint.model_config.vision_config.temporal_merge_size
        if merged != _FRAMES:
            raise CheckpointError(
                f"vision_config.temporal_merge_size={merged!r} is not supported: it must be {_FRAMES}"
            )
        settings = read_processor(checkpoint, "video_processor")
        most = read_count(settings, "max_frames", 180, most=1 << 16, where=checkpoint.path)
        least = read_count(settings, "min_frames", 16, most=most, where=checkpoint.path)
        rate = read_positive({"fps": settings.get("fps") or 2}, "fps", 2, checkpoint.path)
        self.default_sampling = {"fps": rate, "min_frames": least, "max_frames": most}
        self._font = _read_font(checkpoint, settings) if settings.get("draw_on_frames", True) else None

    def read_item_tokens(self, modality: Modality) -> tuple[int, int, int]:
        config, kind = self.checkpoint.model_config, modality.value
        start, row, end = (getattr(config, f"{kind}_{name}token_id") for name in ("start_", "", "end_"))
        return start, row, end

    def read_settings(self, modality: Modality, settings: Mapping[str, object]) -> PatchSettings:
        default = 1 if modality is Modality.IMAGE else _FRAMES
        if (given := settings.get("temporal_patch_size", default)) not in (1, default):
            raise CheckpointError(
                f"{self.checkpoint.path}: processor setting temporal_patch_size must be {default}, got {str(given)[:9]}"
            )
        return PatchSettings.read(
            {**settings, "temporal_patch_size": 1, "cap_pixels_per_frame": False},
            self.checkpoint.path,
            processor=f"Ernie4_5_VLMoe{modality.value.capitalize()}Processor",
            default_size=self.default_sizes[modality],
        )

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        font = None if self._font is None else digest(self._font).hex()
        return {**super().preprocessing, "font": font}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        if modality is Modality.IMAGE:
            return super().measure(modality, size, options)
        return super().measure(modality, replace(size, num_frames=size.num_frames + size.num_frames % _FRAMES), options)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        """Draw the times of frames first, and repeat the last frame of an odd number of them."""
        if media.modality is Modality.IMAGE:
            return super().preprocess(media, measures)
        frames, times = media.frames, media.timestamps_s
        if self._font is not None:
            frames = draw_times(frames, times, self._font)
        if len(frames) % _FRAMES:
            frames, times = np.concatenate((frames, frames[-1:])), (*times, *times[-1:])
        return super().preprocess(replace(media, frames=frames, timestamps_s=times), measures)

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        start, row, end = self.item_tokens[modality]
        frames, height, width = measures["grid"]
        num_rows = -(-frames // _FRAMES) * math.prod((height, width)) // self.merge_size**2
        return make_expansion(([start], False), ([row] * num_rows, True), ([end], False))

    def backbone(self) -> Backbone:
        return replace(super().backbone(), media_rows=MediaRowsSpec(tokens="span", reach="experts"))

    def tower_config(self) -> PackedVisionConfig:
        from seesay.encoders.towers.packed_layout import ResamplerConfig

        config = self.checkpoint.model_config
        vision = config.vision_config
        return self.make_tower_config(
            hidden_size=vision.hidden_size,
            intermediate_size=vision.intermediate_size,
            out_hidden_size=self.checkpoint.text_config.hidden_size,
            uses_rms_norm=False,
            norm_eps=vision.rms_norm_eps,
            projector=ResamplerConfig(norm_eps=self.checkpoint.text_config.rms_norm_eps),
        )


def _read_font(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> bytes:
    """Return the file of the font in which times are drawn. Raises `CheckpointError` where there is none."""
    name = settings.get("font", "Roboto-Regular.ttf")
    if not isinstance(name, str) or not re.fullmatch(r"[\w -]+\.(ttf|otf)", name):
        raise CheckpointError(
            f"{checkpoint.path}: processor setting font must be the name of a .ttf file, got {str(name)[:40]!r}"
        )
    try:
        data = read_bytes(checkpoint.path / name)
        check_font(data)
    except OSError as error:
        raise CheckpointError(
            f"{checkpoint.path / name}: the font in which the times of videos are drawn cannot be read: {error}"
        ) from None
    return data
