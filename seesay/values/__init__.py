"""The frozen values that cross folders. Holds data only, no tensors, and little behaviour."""

from __future__ import annotations

from seesay.values.answers import (
    FinishReason,
    OutputDelta,
    StageMoments,
    StageTimings,
    Usage,
    find_prompt_logprobs,
    join_deltas,
)
from seesay.values.documents import DOCUMENT_OPTIONS, DOCUMENT_SUFFIXES, DocumentOptions, TextLayer
from seesay.values.media import (
    AUDIO_SUFFIXES,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    AudioSamples,
    DecodedMedia,
    Expansion,
    MediaItem,
    MediaPlace,
    MediaReport,
    MediaSize,
    Modality,
    VideoFrames,
    split_place,
)
from seesay.values.requests import (
    GenerationRequest,
    MediaPart,
    Message,
    MultimodalInput,
    Pooling,
    RenderedPrompt,
    TextPart,
    ThoughtRule,
)
from seesay.values.stats import EngineStats

__all__ = [
    "AUDIO_SUFFIXES",
    "AudioSamples",
    "DOCUMENT_OPTIONS",
    "DOCUMENT_SUFFIXES",
    "DecodedMedia",
    "DocumentOptions",
    "EngineStats",
    "Expansion",
    "FinishReason",
    "GenerationRequest",
    "IMAGE_SUFFIXES",
    "MediaItem",
    "MediaPart",
    "MediaPlace",
    "MediaReport",
    "MediaSize",
    "Message",
    "Modality",
    "MultimodalInput",
    "OutputDelta",
    "Pooling",
    "RenderedPrompt",
    "StageMoments",
    "StageTimings",
    "TextLayer",
    "TextPart",
    "ThoughtRule",
    "Usage",
    "VIDEO_SUFFIXES",
    "VideoFrames",
    "find_prompt_logprobs",
    "join_deltas",
    "split_place",
]
