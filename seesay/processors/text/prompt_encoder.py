"""Turns rendered prompts into token ids, and finds media markers and user text in them by character offset."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tokenizers

from seesay.errors import ErrorCode, RequestError
from seesay.processors.text.literals import LiteralTokenizer
from seesay.processors.text.long_text import encode_text
from seesay.values import RenderedPrompt


class PromptEncoder:
    """Encodes the prompts of one tokenizer. Thread-safe."""

    def __init__(
        self, backend: tokenizers.Tokenizer, added_tokens: Mapping[int, str], prefix_ids: Sequence[int]
    ) -> None:
        """prefix_ids: what the tokenizer puts before a raw text."""
        self._backend = backend
        self._added_tokens = added_tokens
        self._prefix_ids = prefix_ids
        self._spelling_tokens: dict[str, bool] = {}  # of the few markers of a family
        self._literals: LiteralTokenizer | None = None
        self._literals_lock = threading.Lock()

    def encode(
        self, rendered: RenderedPrompt, *, is_apart: bool = False, begins_empty: bool = True
    ) -> tuple[npt.NDArray[np.int64], tuple[tuple[int, int], ...]]:
        """Return ids int64 [T] of a rendered prompt, and the (start, stop) token range of each media marker.

        Equals the tokenization of the whole text, except that `rendered.literals` never become special tokens. The ids
        begin with the tokenizer's prefix (its BOS) exactly once: it is added if the text does not spell it, and
        repetitions at the beginning are dropped; a prompt that takes no prefix is left as it is. A marker that spells
        no token of its own has an empty range; the texts around it are tokenized one by one, as LLaVA's own code does.
        Raises `RequestError` if another marker shares a token with adjacent text.

        is_apart: this holds for all markers, whatever they spell, and each of the texts begins with the prefix;
        begins_empty: one without characters, too, and not the first alone.
        """
        spans = _ascending(rendered.markers)
        ids: list[int] = []
        ranges: list[tuple[int, int]] = []
        done = first = 0
        end = (len(rendered.text), len(rendered.text))
        for index, (start, stop) in enumerate((*spans, end)):
            if index < len(spans) and not is_apart and self._spells_token(rendered.text[start:stop]):
                continue
            piece_ids, piece_ranges = self._encode_piece(rendered, (done, start), spans[first:index])
            if is_apart and rendered.takes_prefix and (begins_empty or start > done or not index):
                piece_ids = self._with_prefix(piece_ids)
            ranges += [(len(ids) + low, len(ids) + high) for low, high in piece_ranges]
            ids += piece_ids
            if index < len(spans):
                ranges.append((len(ids), len(ids)))
            done, first = stop, index + 1
        begun = ids if is_apart or not rendered.takes_prefix else self._with_prefix(ids)
        shift = len(begun) - len(ids)
        return np.asarray(begun, dtype=np.int64), tuple((start + shift, stop + shift) for start, stop in ranges)

    def _with_prefix(self, ids: list[int]) -> list[int]:
        """Return ids that begin with the tokenizer's prefix exactly once."""
        prefix, written = self._prefix_ids, 0
        while starts_with(ids[written : written + len(prefix)], prefix):
            written += len(prefix)
        return [*prefix, *ids[written:]]

    def _encode_piece(
        self, rendered: RenderedPrompt, piece: tuple[int, int], markers: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a piece (start, stop) of a prompt's text, and the token range of each of its `markers`."""
        begin, end = piece
        if begin == end:
            return [], []
        text = rendered.text[begin:end]
        literals = [(start - begin, stop - begin) for start, stop in rendered.literals if begin <= start < end]
        if literals:
            ids, offsets, tokens = self._literal_tokenizer().encode(text, literals)
        else:
            encoding = encode_text(self._backend, text)
            ids = encoding.ids  # each of these three attributes builds a new list
            offsets, tokens = (encoding.offsets, encoding.tokens) if markers else ([], [])
        spans = [(start - begin, stop - begin) for start, stop in markers]
        return ids, [self._find_marker(text, span, ids, offsets, tokens) for span in spans]

    def _spells_token(self, marker: str) -> bool:
        """Return whether an added token is a part of a marker."""
        if marker not in self._spelling_tokens:
            self._spelling_tokens[marker] = any(token in marker for token in self._added_tokens.values() if token)
        return self._spelling_tokens[marker]

    def _literal_tokenizer(self) -> LiteralTokenizer:
        """Build the tokenizer for literals. It is built when it is first needed; most processes never need it."""
        with self._literals_lock:
            if self._literals is None:
                self._literals = LiteralTokenizer.build(self._backend.to_str(), self._added_tokens)
            return self._literals

    def _find_marker(
        self, text: str, span: tuple[int, int], ids: list[int], offsets: list[tuple[int, int]], tokens: list[str]
    ) -> tuple[int, int]:
        """Return the token range that covers exactly the characters `span`."""
        touching = _tokens_touching(offsets, span)
        if touching is None:
            raise _bad_marker(text, span)
        first, last = touching
        start, stop = offsets[first][0], offsets[last][1]
        if (start, stop) != span:
            # A marker token with lstrip / rstrip includes the whitespace around it.
            is_added = ids[first] in self._added_tokens and ids[last] in self._added_tokens
            if not is_added or text[start:stop].strip() != text[span[0] : span[1]].strip():
                raise _bad_marker(text, span)
        elif (
            ids[first] not in self._added_tokens
            and tokens[first][0] in "Ġ▁"
            and first
            and offsets[first - 1][1] < start
        ):
            raise _bad_marker(text, span)  # its first token includes the space before it, although its offsets do not
        return first, last + 1


def starts_with(ids: Sequence[int], prefix: Sequence[int]) -> bool:
    """Return whether ids begin with a prefix that is not empty."""
    return bool(prefix) and list(ids[: len(prefix)]) == list(prefix)


def _tokens_touching(offsets: Sequence[tuple[int, int]], span: tuple[int, int]) -> tuple[int, int] | None:
    """Return the first and last index of the tokens that hold characters of `span`, or None."""
    # Stops never decrease, so a binary search finds the first candidate. Empty tokens hold no characters.
    low = bisect.bisect_right(offsets, span[0], key=lambda offset: offset[1])
    high = low
    while high < len(offsets) and offsets[high][0] < span[1]:
        high += 1
    touching = [i for i in range(low, high) if offsets[i][1] > offsets[i][0]]
    return (touching[0], touching[-1]) if touching else None


def _ascending(spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    assert all(start < stop for start, stop in spans), f"empty span in {spans}"
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), f"spans overlap or descend: {spans}"
    return spans


def _bad_marker(text: str, span: tuple[int, int]) -> RequestError:
    around = text[max(0, span[0] - 16) : span[1] + 16]
    return RequestError(
        ErrorCode.INVALID_REQUEST,
        f"the media marker {text[span[0] : span[1]]!r} shares a token with the text beside it ({around!r}): "
        "separate them, for example with a newline",
        "messages",
    )
