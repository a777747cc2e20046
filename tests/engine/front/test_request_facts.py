"""Facts about a request that are seen by looking at it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seesay.config import GenerationConfig
from seesay.engine.front.request_facts import (
    has_media,
    has_media_at_hand,
    is_conversation,
    modalities_of,
    texts_of,
    wants_answer,
)
from seesay.values import GenerationRequest, MediaPart, Message, Modality, TextPart

CONFIG = GenerationConfig()


def picture(source: Any = b"", modality: Modality = Modality.IMAGE) -> MediaPart:
    return MediaPart(modality=modality, source=source)


def talk(*parts: Any) -> GenerationRequest:
    """A conversation with these parts behind a system message."""
    messages = Message(role="system", parts=(TextPart(text="be kind"),)), Message(role="user", parts=parts)
    return GenerationRequest(prompt=messages, gen_config=CONFIG)


def test_messages_are_a_conversation_and_texts_and_tokens_are_none() -> None:
    assert is_conversation(talk()) and is_conversation(GenerationRequest(prompt=(), gen_config=CONFIG))
    for prompt in ("hi", (1, 2)):
        assert not is_conversation(GenerationRequest(prompt=prompt, gen_config=CONFIG))


def test_texts_of_a_conversation_are_its_roles_and_the_texts_of_its_parts() -> None:
    prompt: Any = talk(picture(), TextPart(text="one"), picture(), TextPart(text="two")).prompt
    assert list(texts_of(prompt)) == ["system", "be kind", "user", "one", "two"]


def test_a_prompt_that_is_only_computed_wants_no_answer() -> None:
    request = talk()
    assert wants_answer(request)
    assert not wants_answer(replace(request, wants_answer=False))
    assert not wants_answer(replace(request, pooling="last"))


@pytest.mark.parametrize(
    "request_",
    [
        talk(TextPart(text="see"), picture()),
        GenerationRequest(prompt="see <image>", gen_config=CONFIG, media=(picture(),)),
        GenerationRequest(prompt=(1, 2), gen_config=CONFIG, media=(picture(),)),
    ],
    ids=["conversation", "text", "tokens"],
)
def test_media_stand_in_messages_or_beside_the_prompt(request_: GenerationRequest) -> None:
    assert has_media(request_) and modalities_of(request_) == {Modality.IMAGE}


def test_a_request_without_media() -> None:
    assert not has_media(talk(TextPart(text="http://x"))) and not has_media_at_hand(talk())
    assert not modalities_of(talk())


def test_several_kinds_of_media() -> None:
    assert modalities_of(talk(picture(), picture(modality=Modality.VIDEO))) == {Modality.IMAGE, Modality.VIDEO}


@pytest.mark.parametrize(
    ("source", "is_at_hand"),
    [
        ("https://host/a.png", False), ("HTTP://host/a.png", False), ("data:image/png;base64,AA==", True),
        ("file:///a.png", True), ("httpx", True), (b"https://", True),
    ],
)  # fmt: skip
def test_what_somebodys_server_has_is_not_at_hand(source: Any, is_at_hand: bool) -> None:
    assert has_media_at_hand(talk(picture(source))) == is_at_hand
    assert has_media_at_hand(talk(picture(), picture(source))) == is_at_hand
