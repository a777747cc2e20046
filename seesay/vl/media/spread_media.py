"""Puts the pages of documents into a prompt, and the frames of videos where the model takes pictures only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from seesay.processors.media.video.video_frame import VideoFrame
from seesay.values import MediaPart, Message, Modality, RenderedPrompt, TextPart
from seesay.vl.constants import AUDIO_TOKEN, IMAGE_TOKEN, VIDEO_TOKEN

Split = Callable[[Sequence[MediaPart]], list[tuple[TextPart | MediaPart, ...]]]
"""Returns what stands for each part: itself, the frames of a video, or the pages of a document."""

_NEUTRAL = {Modality.IMAGE: IMAGE_TOKEN, Modality.VIDEO: VIDEO_TOKEN, Modality.AUDIO: AUDIO_TOKEN}
_MODALITIES = {token: modality for modality, token in _NEUTRAL.items()}
_TOKENS = re.compile("|".join(map(re.escape, _MODALITIES)))


def spread_messages(messages: Sequence[Message], split: Split) -> list[Message]:
    """Replace each video by its frames, and each document by its pages, where it was. A chat template writes them as it
    writes pictures."""
    pieces = iter(split([part for message in messages for part in message.parts if isinstance(part, MediaPart)]))

    def spread(part: TextPart | MediaPart) -> tuple[TextPart | MediaPart, ...]:
        return next(pieces) if isinstance(part, MediaPart) else (part,)

    return [
        replace(message, parts=tuple(piece for part in message.parts for piece in spread(part))) for message in messages
    ]


def spread_raw(text: str, media: Sequence[MediaPart], split: Split) -> tuple[str, tuple[MediaPart, ...]]:
    """Replace each `VIDEO_TOKEN` in a raw prompt by an `IMAGE_TOKEN` per frame, and the `IMAGE_TOKEN` of a document by
    one per page, each in a line of its own and without any other text. A text whose tokens are not those of its media
    is returned as it is."""
    found = [_MODALITIES[token] for token in _TOKENS.findall(text)]
    if sorted(found) != sorted(part.modality.stands_as for part in media):
        return text, tuple(media)
    pieces = list(map(_media_of, split(_order_as(found, media))))
    tokens = iter([[_NEUTRAL[part.modality] for part in piece] for piece in pieces])
    spread = _TOKENS.sub(lambda _: "\n".join(next(tokens)), text)
    return spread, tuple(part for piece in pieces for part in piece)


def _media_of(piece: Sequence[TextPart | MediaPart]) -> list[MediaPart]:
    return [part for part in piece if isinstance(part, MediaPart)]


def _order_as(modalities: Sequence[Modality], media: Sequence[MediaPart]) -> list[MediaPart]:
    """Return `media` in the order of their modalities in the text."""
    queues = {modality: iter([part for part in media if part.modality.stands_as is modality]) for modality in Modality}
    return [next(queues[modality]) for modality in modalities]


def text_without_media(rendered: RenderedPrompt) -> str:
    """Return the text of a prompt without its markers, and without what a template writes between two frames of one
    video."""
    pieces: list[str] = []
    done, last = 0, None
    for part, (start, stop) in zip(rendered.media, rendered.markers, strict=True):
        video = part.source.video if isinstance(part.source, VideoFrame) else None
        if video is None or video is not last:
            pieces.append(rendered.text[done:start])
        done, last = stop, video
    return "".join([*pieces, rendered.text[done:]])
