"""Splicing media into prompts, by offset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seesay.errors import RequestError
from seesay.values import Expansion, MediaPart, MediaSize, Modality, RenderedPrompt
from seesay.vl.constants import IMAGE_TOKEN, VIDEO_TOKEN
from seesay.vl.family import NUMBER, MediaPlan, Wording
from seesay.vl.media.media_items import PreparedMedia
from seesay.vl.prompts.prompt import TokenizedPrompt, build_input, render_raw, tokenize

MARKERS = {Modality.IMAGE: "[I]", Modality.VIDEO: "[V]"}


def prepare(num_rows: Any, key: Any) -> Any:
    """A picture of n rows, which becomes: begin (2), n rows (3), end (4)."""
    expansion = Expansion(
        token_ids=np.array([2, *[3] * num_rows, 4], dtype=np.int64),
        takes_embedding=np.array([False, *[True] * num_rows, False]),
    )
    plan = MediaPlan(measures={}, expansion=expansion, num_units=4 * num_rows, peak_pixels=1)
    size = MediaSize(num_frames=1, height=1, width=1)
    return PreparedMedia(modality=Modality.IMAGE, features={}, plan=plan, key=key, size=size)


class CharTokenizer:
    """`prefix`, one token per character, and one, 0, for each marker span."""

    def __init__(self, prefix: Any = ()) -> None:
        self.prefix = prefix

    def encode_prompt(self, rendered: Any, *, is_apart: bool = False, begins_empty: bool = True) -> Any:
        ids, ranges, done = list(self.prefix), [], 0
        for start, stop in rendered.markers:
            ids += map(ord, rendered.text[done:start])
            ranges.append((len(ids), len(ids) + 1))
            ids.append(0)
            done = stop
        return np.array([*ids, *map(ord, rendered.text[done:])], dtype=np.int64), tuple(ranges)


class FakeFamily:
    num_position_axes = 1

    def positions(self, token_ids: Any, items: Any) -> Any:
        return np.arange(len(token_ids)), len(token_ids)

    def number(self, expansion: Any, number: Any) -> Any:
        """The second item's begins with another token."""
        token_ids = expansion.token_ids.copy()
        token_ids[0] += 50 * number
        return Expansion(token_ids=token_ids, takes_embedding=expansion.takes_embedding)

    def share(self, measures: Any) -> Any:
        """All items but the last know how many there are."""
        return [{"count": len(measures)} if index < len(measures) - 1 else {} for index in range(len(measures))]


def make_family() -> Any:
    return FakeFamily()


def make_tokenizer(prefix: Any = ()) -> Any:
    return CharTokenizer(prefix)


def media(*modalities: Any) -> Any:
    return tuple(MediaPart(modality=Modality(m), source=i) for i, m in enumerate(modalities))


def build(rendered: Any, prepared: Any, *, prefix: Any = (), **kwargs: Any) -> Any:
    kwargs = {"model_digest": b"m", **kwargs}
    tokens = tokenize(rendered, make_tokenizer(prefix))
    return build_input(tokens, prepared, family=make_family(), **kwargs)


def test_text_only() -> None:
    built = build(RenderedPrompt(text="ab"), [])
    assert built.token_ids.tolist() == [97, 98] and built.items == () and built.next_position == 2
    assert built.token_ids.dtype == np.int64


def test_items_stand_in_their_markers_places() -> None:
    rendered = RenderedPrompt(text="a[I]b[I][I]", media=media("image", "image"), markers=((1, 4), (8, 11)))
    built = build(rendered, [prepare(2, b"x"), prepare(1, b"y")])
    text = [ord(c) for c in "b[I]"]
    assert built.token_ids.tolist() == [97, 2, 3, 3, 4, *text, 52, 3, 4]
    first, second = built.items
    assert first.span == (1, 5) and first.slots.tolist() == [2, 3] and first.num_units == 8
    assert second.span == (9, 12) and second.slots.tolist() == [10]
    for item in built.items:
        assert (built.token_ids[item.slots] == 3).all()


def test_bos_shifts_nothing() -> None:
    rendered = RenderedPrompt(text="[I]b", media=media("image"), markers=((0, 3),))
    built = build(rendered, [prepare(1, b"x")], prefix=[1])
    assert built.token_ids.tolist() == [1, 2, 3, 4, 98]
    assert built.items[0].slots.tolist() == [2]


def test_hash_is_of_content_and_model() -> None:
    rendered = RenderedPrompt(text="[I][I]", media=media("image", "image"), markers=((0, 3), (3, 6)))

    def hashes(key: Any = "x", **kwargs: Any) -> Any:
        built = build(rendered, [prepare(1, b"x"), prepare(1, key.encode())], **kwargs)
        return [item.hash for item in built.items]

    shared, same = hashes()
    alone = build(replace(rendered, text="[I]", media=media("image"), markers=((0, 3),)), [prepare(1, b"x")])
    assert same == alone.items[0].hash != shared and len(same) == 32
    assert hashes("y")[1] != same
    assert hashes(model_digest=b"other")[1] != same


def test_what_items_have_because_of_others_is_in_their_features() -> None:
    rendered = RenderedPrompt(text="[I][I]", media=media("image", "image"), markers=((0, 3), (3, 6)))
    first, second = build(rendered, [prepare(1, b"x"), prepare(1, b"x")]).items
    assert first.features == {"count": 2} and second.features == {}


def test_what_cannot_be_built() -> None:
    with pytest.raises(RequestError, match="empty"):
        build(RenderedPrompt(text=""), [])
    with pytest.raises(RequestError, match="too small"):
        build(RenderedPrompt(text="[I]", media=media("image"), markers=((0, 3),)), [prepare(0, b"x")])


def test_token_ids() -> None:
    tokens = TokenizedPrompt(token_ids=np.array([5, 6, 7]))
    built = build_input(tokens, [], family=make_family(), model_digest=b"m")
    assert built.token_ids.tolist() == [5, 6, 7] and built.next_position == 3
    with pytest.raises(RequestError, match="empty"):
        build_input(TokenizedPrompt(token_ids=np.array([])), [], family=make_family(), model_digest=b"m")


def test_text_is_counted_without_its_markers() -> None:
    rendered = RenderedPrompt(text="a[I]b[I]", media=media("image", "image"), markers=((1, 4), (5, 8)))
    assert tokenize(rendered, make_tokenizer()).num_text_tokens == 2


def test_raw_text() -> None:
    assert render_raw(f"<s>{IMAGE_TOKEN}", (), MARKERS) == RenderedPrompt(text=f"<s>{IMAGE_TOKEN}")
    parts = media("image", "video", "image")
    rendered = render_raw(f"a{VIDEO_TOKEN}b{IMAGE_TOKEN}{IMAGE_TOKEN}[I]", parts, MARKERS)
    assert rendered.text == "a[V]b[I][I][I]"
    assert rendered.markers == ((1, 4), (5, 8), (8, 11))
    assert [p.source for p in rendered.media] == [1, 0, 2]
    own = render_raw("x [I] y", media("image"), MARKERS)
    assert own.markers == ((2, 5),)


def test_raw_text_with_the_spelling_of_the_published_code() -> None:
    spellings = {Modality.IMAGE: r"<\|image_\d+\|>"}
    rendered = render_raw("<|image_1|>a<|image_2|>[I]", media("image", "image"), MARKERS, spellings)
    assert (rendered.text, rendered.markers) == ("[I]a[I][I]", ((0, 3), (4, 7)))
    with pytest.raises(RequestError, match=r"numbers its image items \[2, 1\]: they must count up from 1"):
        render_raw("<|image_2|>a<|image_1|>", media("image", "image"), MARKERS, spellings)


@pytest.mark.parametrize(
    ("text", "modalities", "message"),
    [
        ("no place", ["image"], "0 <IMAGE_TOKEN> for 1 image"),
        ("no place", ["image", "video"], "0 <IMAGE_TOKEN> for 1 image.*must contain one for each"),
        (f"{IMAGE_TOKEN}{IMAGE_TOKEN}", ["image"], "2 <IMAGE_TOKEN> for 1"),
        (f"{IMAGE_TOKEN}", ["image", "video"], "0 <VIDEO_TOKEN> for 1 video"),
    ],
)
def test_raw_text_that_does_not_fit(text: str, modalities: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render_raw(text, media(*modalities), MARKERS)
    with pytest.raises(RequestError, match="takes no image"):
        render_raw(IMAGE_TOKEN, media("image"), {})


# --- wordings around media --------------------------------------------------------------------------------------------


class LiteralTokenizer(CharTokenizer):
    """Notes what it was given."""

    rendered: RenderedPrompt

    def encode_prompt(self, rendered: Any, **options: Any) -> Any:
        self.rendered = rendered
        return super().encode_prompt(rendered, **options)


def mark(text: str) -> tuple[str, list[tuple[int, int]], list[tuple[int, int]]]:
    """The text without its signs, and where its `{literals}` and `<markers>` are."""
    plain, places = "", dict[str, list[int]](zip("{}<>", ([], [], [], []), strict=True))
    for letter in text:
        if letter in places:
            places[letter].append(len(plain))
        else:
            plain += letter
    literals, markers = (list(zip(places[a], places[b], strict=True)) for a, b in ("{}", "<>"))
    return plain, literals, markers


WORDED = Wording(before=f"P{NUMBER}: ", marker="(I)", after="\n")


@pytest.mark.parametrize(
    ("text", "wordings", "expected"),
    [
        ("{a}<[I]>b", [WORDED], "{a}P1: <(I)>\nb"),
        ("<[I]>{eos}|", [WORDED], "P1: <(I)>\n{eos}|"),
        ("{a}b{c}<[I]>{d}{e}<[I]>f{g}", [WORDED] * 2, "{a}b{c}P1: <(I)>\n{d}{e}P2: <(I)>\nf{g}"),
        ("{a}<[I]>{b}<[I]>{c}", [None, WORDED], "{a}<[I]>{b}P2: <(I)>\n{c}"),
        ("{a}<[I]>{b}<[I]>{c}", [WORDED, None], "{a}P1: <(I)>\n{b}<[I]>{c}"),
        ("x<[I]><[I]>", [WORDED] * 2, "xP1: <(I)>\nP2: <(I)>\n"),
    ],
)
def test_wordings_move_markers_and_typed_special_tokens(text: str, wordings: Any, expected: str) -> None:
    """A typed special token behind a picture stays where it is typed, and the token of the template behind it whole."""
    plain, literals, markers = mark(text)
    parts = media(*["image"] * len(markers))
    rendered = RenderedPrompt(text=plain, media=parts, markers=tuple(markers), literals=tuple(literals))
    tokenizer: Any = LiteralTokenizer()
    tokens = tokenize(rendered, tokenizer, wordings)
    found = tokenizer.rendered
    assert (found.text, [*found.literals], [*found.markers]) == mark(expected)
    assert found.media == parts and len(tokens.ranges) == len(markers)
