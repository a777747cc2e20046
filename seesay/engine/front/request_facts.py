"""Simple facts about a request, found by looking at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seesay.values import GenerationRequest, MediaPart, Message, Modality, TextPart


def wants_answer(request: GenerationRequest) -> bool:
    """Whether tokens are generated for a request, and not only its prompt computed."""
    return request.wants_answer and request.pooling is None


def is_conversation(request: GenerationRequest) -> bool:
    """Whether the prompt is messages, which a chat template renders."""
    return isinstance(request.prompt, tuple) and not (request.prompt and isinstance(request.prompt[0], int))


def texts_of(messages: Iterable[Message]) -> Iterator[str]:
    """The texts of a conversation: a message has at least one, its role."""
    for message in messages:
        yield message.role
        yield from (part.text for part in message.parts if isinstance(part, TextPart))


def has_media(request: GenerationRequest) -> bool:
    """Whether a request refers to pictures or videos."""
    return any(True for _ in _media_parts(request))


def modalities_of(request: GenerationRequest) -> frozenset[Modality]:
    """The kinds of media that a request refers to."""
    return frozenset(part.modality for part in _media_parts(request))


def has_media_at_hand(request: GenerationRequest) -> bool:
    """Whether it does, and none must be fetched: an encoder may wait a moment for those, not for somebody's server."""
    parts = list(_media_parts(request))
    return bool(parts) and not any(_is_web_url(part.source) for part in parts)


def _media_parts(request: GenerationRequest) -> Iterator[MediaPart]:
    yield from request.media
    if not isinstance(request.prompt, str) and is_conversation(request):
        for message in request.prompt:
            if isinstance(message, Message):
                yield from (part for part in message.parts if isinstance(part, MediaPart))


def _is_web_url(source: object) -> bool:
    return isinstance(source, str) and source[:8].lower().startswith(("http://", "https://"))
