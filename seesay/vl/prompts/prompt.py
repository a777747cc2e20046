"""From a rendered prompt and prepared media to one row of positions. Splices by offset, never by comparing ids."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError
from seesay.system.hashing import digest
from seesay.values import MediaItem, MediaPart, Modality, MultimodalInput, RenderedPrompt
from seesay.vl.constants import AUDIO_TOKEN, IMAGE_TOKEN, VIDEO_TOKEN

if TYPE_CHECKING:
    from seesay.processors.text.tokenizer import Tokenizer
    from seesay.vl.family import Family, Wording
    from seesay.vl.media.media_items import PreparedMedia

logger = logging.getLogger("seesay.prompts")

_NEUTRAL = {Modality.IMAGE: IMAGE_TOKEN, Modality.VIDEO: VIDEO_TOKEN, Modality.AUDIO: AUDIO_TOKEN}


def render_raw(
    text: str,
    media: Sequence[MediaPart],
    markers: Mapping[Modality, str],
    spellings: Mapping[Modality, str] | None = None,
) -> RenderedPrompt:
    """Make a prompt without a chat template. Special tokens in its text are honoured.

    Media go where `IMAGE_TOKEN`, `VIDEO_TOKEN` and `AUDIO_TOKEN` are, or else where the text holds the model's own
    markers, or what fits the patterns `spellings` (`Family.spellings`). Raises RequestError when their number differs
    from that of `media`, and for numbers in them that do not count the pictures up.
    """
    if not media:
        return RenderedPrompt(text=text)
    queues = _sort_media(media, markers)
    patterns, shown = _choose_patterns(text, queues, markers, spellings or {})
    pattern = "|".join(f"(?P<{modality.value}>{each})" for modality, each in patterns.items())
    found = [(Modality(str(match.lastgroup)), match.span()) for match in re.finditer(pattern, text)]
    for modality, parts in queues.items():
        spelled = [text[start:stop] for kind, (start, stop) in found if kind is modality]
        _check_places(spelled, len(parts), modality, shown[modality])
    return _place(text, found, queues, markers)


def _sort_media(media: Sequence[MediaPart], markers: Mapping[Modality, str]) -> dict[Modality, list[MediaPart]]:
    """Return the media by modality, in the order of `markers`."""
    for part in media:
        if part.modality not in markers:
            _fail(f"this model takes no {part.modality.value} input")
    return {modality: parts for modality in markers if (parts := [p for p in media if p.modality is modality])}


def _choose_patterns(
    text: str, wanted: Iterable[Modality], markers: Mapping[Modality, str], spellings: Mapping[Modality, str]
) -> tuple[dict[Modality, str], Mapping[Modality, str]]:
    """Return the patterns of the places of media in a text, and how messages spell them: the model's own if the text
    has some of these and none of `IMAGE_TOKEN`, `VIDEO_TOKEN` and `AUDIO_TOKEN`."""
    own = {modality: spellings.get(modality, re.escape(markers[modality])) for modality in wanted}
    if not any(_NEUTRAL[modality] in text for modality in own) and re.search("|".join(own.values()), text):
        return own, markers
    return {modality: re.escape(_NEUTRAL[modality]) for modality in own}, _NEUTRAL


def _check_places(spelled: Sequence[str], num_items: int, modality: Modality, shown: str) -> None:
    """Raise RequestError unless there is a marker for each item, and their numbers, if any, count up from 1."""
    if len(spelled) != num_items:
        _fail(
            f"the text has {len(spelled)} {shown} for {num_items} {modality.value} item(s): without "
            "a chat template it must contain one for each"
        )
    numbers = [int(number) for each in spelled for number in re.findall(r"\d+", each)]
    if numbers and numbers != [*range(1, num_items + 1)]:
        _fail(f"the text numbers its {modality.value} items {numbers[:8]}: they must count up from 1, without gaps")


def _place(
    text: str,
    found: Sequence[tuple[Modality, tuple[int, int]]],
    queues: Mapping[Modality, list[MediaPart]],
    markers: Mapping[Modality, str],
) -> RenderedPrompt:
    """Return the prompt with the model's own marker at each found place."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    placed: list[MediaPart] = []
    length = done = 0
    for modality, (start, stop) in found:
        part = queues[modality].pop(0)
        marker = markers[part.modality]
        pieces += [text[done:start], marker]
        length += start - done
        spans.append((length, length + len(marker)))
        placed.append(part)
        length += len(marker)
        done = stop
    return RenderedPrompt(text="".join([*pieces, text[done:]]), media=tuple(placed), markers=tuple(spans))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt:
    """`token_ids` int64 [T] of a rendered prompt, and the (start, stop) range in it of each media marker's tokens."""

    token_ids: npt.NDArray[np.int64]
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def num_text_tokens(self) -> int:
        """Number of tokens outside the markers."""
        return len(self.token_ids) - sum(stop - start for start, stop in self.ranges)


def find_ranges(media: Sequence[MediaPart], num_tokens: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of media in a prompt of `num_tokens` token ids. Raises RequestError unless each has a position,
    in ascending order."""
    least = 0
    for part in media:
        if part.position is None or not least <= part.position < num_tokens:
            _fail(
                f"position of a {part.modality.value} in a prompt of {num_tokens} token ids must be an index of one of "
                f"them, above that of the item before; got {part.position}"
            )
        least = part.position + 1
    return tuple((part.position, part.position + 1) for part in media if part.position is not None)


def tokenize(
    rendered: RenderedPrompt,
    tokenizer: Tokenizer,
    wordings: Sequence[Wording | None] = (),
    *,
    is_apart: bool = False,
    begins_empty: bool = True,
) -> TokenizedPrompt:
    """Return the tokens of a prompt, which begin with the tokenizer's own prefix. `wordings` are those of its media, in
    the order of the markers. is_apart and begins_empty: see `PromptEncoder.encode`.

    Raises RequestError for a text with half of a surrogate pair.
    """
    if any(wordings):
        rendered = _write_out(rendered, wordings)
    try:
        rendered.text.encode()
    except UnicodeEncodeError as error:
        _fail(
            f"the prompt holds {rendered.text[error.start]!r}, half of a surrogate pair, which is not a character, "
            f"after {rendered.text[max(0, error.start - 20) : error.start]!r}"
        )
    logger.info("prompt: %s", rendered.text)
    token_ids, ranges = tokenizer.encode_prompt(rendered, is_apart=is_apart, begins_empty=begins_empty)
    assert len(ranges) == len(rendered.media), "the tokenizer lost a marker"
    return TokenizedPrompt(token_ids=token_ids, ranges=tuple(ranges))


def _write_out(rendered: RenderedPrompt, wordings: Sequence[Wording | None]) -> RenderedPrompt:
    """Return the prompt with the text of each wording around its item."""
    pieces: list[str] = []
    markers: list[tuple[int, int]] = []
    literals: list[tuple[int, int]] = []
    waiting = iter([*rendered.literals, (len(rendered.text), len(rendered.text))])
    literal = next(waiting)
    length = done = 0
    places = ((*rendered.markers, (len(rendered.text),) * 2), (*wordings, None))
    for number, ((start, stop), wording) in enumerate(zip(*places, strict=True), start=1):
        while literal[1] <= start and literal[0] < literal[1]:
            literals.append((literal[0] - done + length, literal[1] - done + length))
            literal = next(waiting)
        before, marker, after = "", rendered.text[start:stop], ""
        if wording is not None:
            before, marker, after = wording.write_before(number), wording.marker, wording.after
        pieces += [rendered.text[done:start], before, marker, after]
        length += start - done + len(before)
        markers.append((length, length + len(marker)))
        length += len(marker) + len(after)
        done = stop
    return replace(rendered, text="".join(pieces), markers=tuple(markers[:-1]), literals=tuple(literals))


def build_input(
    tokens: TokenizedPrompt,
    media: Sequence[PreparedMedia],
    *,
    family: Family,
    model_digest: bytes,
) -> MultimodalInput:
    """Replace each marker by its item of `media`, which are in the order of the markers.

    model_digest: part of every item's hash, so that caches never mix checkpoints.
    """
    token_ids, ranges = tokens.token_ids, tokens.ranges
    assert len(media) == len(ranges), "one prepared item per marker"
    pieces: list[npt.NDArray[np.int64]] = []
    items: list[MediaItem] = []
    length = done = 0
    shared = family.share([item.plan.measures for item in media])
    for index, ((start, stop), item, others) in enumerate(zip(ranges, media, shared, strict=True)):
        expansion = family.number(item.plan.expansion, index)
        assert expansion.token_ids.shape == expansion.takes_embedding.shape, "an expansion flags each of its tokens"
        pieces += [token_ids[done:start], expansion.token_ids]
        length += start - done
        slots = length + np.flatnonzero(expansion.takes_embedding).astype(np.int64)
        if not len(slots):
            _fail(f"a {item.modality.value} is too small to make an embedding")
        items.append(
            MediaItem(
                modality=item.modality,
                span=(length, length + len(expansion.token_ids)),
                slots=slots,
                hash=hash_item(item.key, model_digest, others),
                features={**item.features, **others},
                num_units=item.plan.num_units,
                has_arrays=not item.was_recalled,
                is_reloadable=item.load_features is not None
                and not any(isinstance(value, np.ndarray) for value in others.values()),
            )
        )
        length += len(expansion.token_ids)
        done = stop
    return _with_positions(np.concatenate([*pieces, token_ids[done:]]).astype(np.int64), tuple(items), family)


def extend(prompt: MultimodalInput, token_ids: Sequence[int]) -> MultimodalInput:
    """Return `prompt` with tokens of the answer behind it, at the positions of generated ones."""
    following = np.arange(prompt.next_position, prompt.next_position + len(token_ids), dtype=np.int64)
    following = np.broadcast_to(following, (*prompt.positions.shape[:-1], len(token_ids)))
    return MultimodalInput(
        token_ids=np.concatenate((prompt.token_ids, np.asarray(token_ids, dtype=np.int64))),
        positions=np.concatenate((prompt.positions, following), axis=-1),
        next_position=prompt.next_position + len(token_ids),
        items=prompt.items,
        num_answer_tokens=prompt.num_answer_tokens + len(token_ids),
    )


def hash_item(key: bytes, model_digest: bytes, shared: Mapping[str, object] = MappingProxyType({})) -> bytes:
    """Return the hash of the item that `build_input` makes of prepared media with this key, and of what it has because
    of the other media of the prompt (`Family.share`)."""
    if shared:
        key = digest(b"shared", key, json.dumps(dict(shared), sort_keys=True).encode())
    return digest(b"item", model_digest, key)


def _with_positions(token_ids: npt.NDArray[np.int64], items: tuple[MediaItem, ...], family: Family) -> MultimodalInput:
    if not len(token_ids):
        _fail("the prompt is empty: it has no token")
    positions, next_position = family.positions(token_ids, items)
    axes = (family.num_position_axes,) if family.num_position_axes > 1 else ()
    assert positions.shape == (*axes, len(token_ids)), f"positions {positions.shape} of {axes} axes"
    return MultimodalInput(token_ids=token_ids, positions=positions, next_position=next_position, items=items)


def _fail(text: str) -> NoReturn:
    raise RequestError(ErrorCode.INVALID_REQUEST, text, "messages")
