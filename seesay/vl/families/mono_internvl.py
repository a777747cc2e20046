"""Mono-InternVL (arXiv 2410.08202): an InternVL without a tower, whose patches go through feed-forwards of their own in
the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seesay.llm.models.spec import MediaRowsSpec
from seesay.values import Modality
from seesay.vl.families.internvl import InternVL
from seesay.vl.family import Backbone
from seesay.vl.published import Published


class MonoInternVL(InternVL):
    """Its tower is a patch embedding with positions. It takes pictures alone: a frame of a video is one of one tile."""

    architectures = ("InternVLChatModel/intern_vit_patch",)
    published = (Published(decoder="llama", names=("OpenGVLab/Mono-InternVL-2B",)),)
    modalities = (Modality.IMAGE,)
    default_sampling = {}
    frame_options = {"max_dynamic_patch": 1}
    weights = replace(
        InternVL.weights,
        decoder_patterns=((r"\.feed_forward_ve\.", ".media.feed_forward."), *InternVL.weights.decoder_patterns),
    )

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: super().markers[Modality.IMAGE]}

    def backbone(self) -> Backbone:
        return replace(super().backbone(), media_rows=MediaRowsSpec(reach="feed_forward"))
