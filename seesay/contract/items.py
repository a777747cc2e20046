"""Media of odd sizes, and what a family makes of them: for the checks of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, MediaPart, MediaSize, Modality, MultimodalInput, RenderedPrompt
from seesay.vl.family import Family, Features, MediaPlan
from seesay.vl.media.media_items import PreparedMedia
from seesay.vl.prompts.prompt import build_input, tokenize

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO
IMAGE_SIZES = [(33, 70), (64, 64), (20, 90), (100, 31), (7, 9), (1, 1), (600, 4)]
FPS = 2.0


@dataclass
class Subject:
    """The family of a checkpoint in the folder `path`, and its tower; None for a text model. `around_videos` is what
    the template writes before and behind the marker of a video, where the model tells videos by it."""

    name: str
    path: Path
    family: Family
    tokenizer: Tokenizer
    encoder: Any
    around_videos: tuple[str, str] = field(default=("", ""), kw_only=True)


def draw_image(height: int, width: int, seed: int = 0) -> DecodedMedia:
    """Return a picture like those of `draw_media`."""
    return draw_media(IMAGE, 1, height, width, seed)


def draw_media(modality: Modality, count: int, height: int, width: int, seed: int = 0) -> DecodedMedia:
    """Return smooth colours with noise, so that resizing matters."""
    rng = np.random.default_rng([seed, count, height, width])
    noise = rng.integers(0, 120, (count, height, width, 3))
    slope = np.linspace(0, 120, height)[:, None, None] + np.linspace(0, 15, width)[:, None]
    times = tuple(i / FPS for i in range(count)) if modality is VIDEO else ()
    frames = (noise + slope).astype(np.uint8)
    return DecodedMedia(modality=modality, frames=frames, timestamps_s=times, digest=rng.bytes(32))


def mixed_media(family: Family) -> list[DecodedMedia]:
    """Return pictures of odd sizes, and a clip between them where the family takes clips."""
    media = [draw_image(*size, seed=i) for i, size in enumerate(IMAGE_SIZES)]
    if VIDEO in family.modalities:
        media.insert(2, draw_media(VIDEO, 5, 40, 60))
    return media


def plan(family: Family, modality: Modality, size: MediaSize, options: Mapping[str, object] | None = None) -> MediaPlan:
    """Return the plan of an item with options as a request has them."""
    return family.plan_media(modality, size, family.resolve_options(modality, options or {}))


def prepare(family: Family, media: DecodedMedia, options: Mapping[str, object] | None = None) -> PreparedMedia:
    """Return what the media frontend makes of decoded media."""
    planned = plan(family, media.modality, media.size, options)
    features = family.preprocess(media, planned.measures)
    return PreparedMedia(modality=media.modality, features=features, plan=planned, key=media.digest, size=media.size)


def preprocess(family: Family, media: DecodedMedia, options: Mapping[str, object] | None = None) -> Features:
    """Return the tower's input for decoded media, with options as a request has them."""
    return prepare(family, media, options).features


def share_options(family: Family, item: DecodedMedia, media: list[DecodedMedia]) -> Mapping[str, int]:
    """Return the options that an item of a prompt with `media` has for their number."""
    if item.modality is not IMAGE:
        return {}
    return family.shared_options(sum(each.modality is IMAGE for each in media))


def render(family: Family, media: list[DecodedMedia], around_videos: tuple[str, str] = ("", "")) -> RenderedPrompt:
    """Return a prompt with words before and after a marker for each of `media`, and an end."""
    text, spans = "the ", []
    for index, item in enumerate(media):
        marker = family.markers[item.modality]
        before, behind = around_videos if item.modality is VIDEO else ("", "")
        text += before
        spans.append((len(text), len(text) + len(marker)))
        text += f"{marker}{behind} in 12\n" + ("the " if index % 2 else "")
    parts = tuple(MediaPart(modality=item.modality, source=None) for item in media)
    return RenderedPrompt(text=text + "<|im_end|>", media=parts, markers=tuple(spans))


def build(subject: Subject, media: list[DecodedMedia], options: dict[str, object] | None = None) -> MultimodalInput:
    """Return the prompt of `render`, through the prompt builder."""
    prepared = [
        prepare(subject.family, item, {**share_options(subject.family, item, media), **(options or {})})
        for item in media
    ]
    wordings = [item.plan.wording for item in prepared]
    family = subject.family
    rendered = family.complete(render(family, media, subject.around_videos))
    tokens = tokenize(
        rendered, subject.tokenizer, wordings, is_apart=family.tokenizes_apart, begins_empty=family.begins_empty
    )
    made: MultimodalInput = build_input(tokens, prepared, family=subject.family, model_digest=bytes(32))
    return made
