"""Options of one picture or video, from a request to the tower's input: they change that item, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from asking import make_picture
from enrolment import FAMILIES
from family_checks import differs, option_sets
from family_contract import VIDEO, load_family

from seesay.config import MediaLimits, VisionConfig
from seesay.errors import RequestError
from seesay.values import GenerationRequest, MediaPart, Message, Modality
from seesay.vl.media.media_frontend import MediaFrontend
from seesay.vl.media.media_items import PreparedMedia
from seesay.vl.prompts.conversation_parts import parse_prompts

PICTURES = [make_picture(60, 90, 1), make_picture(12, 13, 2), make_picture(70, 33, 3), make_picture(20, 170, 4)]
CLIP = [make_picture(80, 33, seed) for seed in range(5)]
NAMES = (*FAMILIES, "minicpmv_4_5")


@pytest.fixture(params=NAMES)
def front(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]) -> Iterator[MediaFrontend]:
    family, _ = load_family(tiny_checkpoint(request.param))
    with closing(MediaFrontend(family, VisionConfig(), MediaLimits())) as front:
        yield front


def prepare(front: MediaFrontend, *items: Mapping[str, Any]) -> Sequence[PreparedMedia]:
    [request], _ = parse_prompts([[{"role": "user", "content": [*items, {"type": "text", "text": "what?"}]}]])
    assert isinstance(request, GenerationRequest) and isinstance(request.prompt, tuple), request
    messages = [message for message in request.prompt if isinstance(message, Message)]
    media = [part for message in messages for part in message.parts if isinstance(part, MediaPart)]
    return front.prepare(front.open(media))


def draw(modality: Modality) -> list[dict[str, Any]]:
    """Media that options change: large and small, wide and tall."""
    if modality is VIDEO:
        return [{"type": "video", "video": CLIP}]
    return [{"type": "image", "image": picture} for picture in PICTURES]


def test_options_change_their_item_alone(front: MediaFrontend) -> None:
    family = front._family
    for modality in family.modalities:
        unused = set(family.options.get(modality, ()))
        for item in draw(modality):
            plain = prepare(front, item, item)
            for options in option_sets(family, modality):
                try:
                    found = prepare(front, {**item, **options}, item)
                except RequestError:
                    continue  # what contradicts this size
                are_different = [
                    differs((a.features, a.plan.expansion), (b.features, b.plan.expansion))
                    for a, b in zip(plain, found, strict=True)
                ]
                assert not are_different[1] and plain[1].key == found[1].key
                if are_different[0]:
                    assert plain[0].key != found[0].key
                    unused -= options.keys()
        assert not unused, f"{modality.value}: {sorted(unused)} change no item"


def test_an_unknown_option_is_refused_by_its_name(front: MediaFrontend) -> None:
    family = front._family
    for modality in family.modalities:
        [*_, item] = draw(modality)
        known = set(family.options.get(modality, ()))
        for name in ("sparkle", *({"max_slice_nums", "do_pan_and_scan", "size"} - known)):
            with pytest.raises(RequestError) as raised:
                prepare(front, item, {**item, name: 1})
            message, _, listed = raised.value.message.partition("; known are: ")
            place = f"messages[0].content[1].{name}"
            assert message == f"{place}: {modality.value} option '{name}' is unknown to this model"
            assert {"detail", *known} <= set(listed.split(", "))
