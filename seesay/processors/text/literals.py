"""Tokenize a text in which only some spellings of a special token stand for that token."""

from __future__ import annotations

import bisect
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from seesay.processors.text.long_text import encode_text


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralTokenizer:
    """A tokenizer that treats given spans of the text as plain text, whatever they spell. Thread-safe.

    `backend` is the original tokenizer with each added token renamed to an unguessable private-use sentinel. Spellings
    that stand for the token are replaced by sentinels; the others are plain text. Everything else (normalizer,
    pre-tokenizer, treatment of the first segment) is unchanged.
    """

    backend: tokenizers.Tokenizer
    pattern: re.Pattern[str]
    sentinels: Mapping[str, str]
    real_ids: Mapping[int, int]

    @classmethod
    def build(cls, state_json: str, added_tokens: Mapping[int, str]) -> LiteralTokenizer:
        """Build it from the original tokenizer's JSON and its added tokens by id."""
        state = json.loads(state_json)
        nonce = secrets.token_hex(8)
        sentinels = {content: f"\ue000{nonce}{index}\ue001" for index, content in enumerate(added_tokens.values())}
        _rename_in_model(state["model"], sentinels)
        for token in state["added_tokens"]:
            token["content"] = sentinels[token["content"]]
        state["post_processor"] = None  # it uses the original's ids; the caller adds a BOS
        backend = tokenizers.Tokenizer.from_str(json.dumps(state))
        # A loaded tokenizer renumbers the added tokens that are not in the model's vocabulary.
        real_ids = {_id_of(backend, sentinels[content]): token_id for token_id, content in added_tokens.items()}
        longest_first = sorted(filter(None, sentinels), key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        return cls(backend=backend, pattern=pattern, sentinels=sentinels, real_ids=real_ids)

    def encode(
        self, text: str, literals: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]], list[str]]:
        """Return ids, character offsets into `text` and token strings. No added token comes from a literal span."""
        pieces = _Pieces()
        done = 0
        for start, stop in [*literals, (len(text), len(text))]:
            for match in self.pattern.finditer(text, done, start):
                pieces.add(text[done : match.start()], done, match.start() - done)
                pieces.add(self.sentinels[match.group()], match.start(), match.end() - match.start())
                done = match.end()
            pieces.add(text[done:stop], done, stop - done)
            done = stop
        encoding = encode_text(self.backend, "".join(pieces.texts))
        ids = [self.real_ids.get(token_id, token_id) for token_id in encoding.ids]
        return ids, [pieces.original_span(span) for span in encoding.offsets], encoding.tokens


class _Pieces:
    """A rewritten text as pieces. Each piece is copied from the original, or replaces a span of it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._starts: list[int] = []
        self._origins: list[tuple[int, int]] = []  # (offset, length) in the original
        self._length = 0

    def add(self, text: str, origin: int, length: int) -> None:
        if text:
            self.texts.append(text)
            self._starts.append(self._length)
            self._origins.append((origin, length))
            self._length += len(text)

    def original_span(self, span: tuple[int, int]) -> tuple[int, int]:
        """Map a span of the rewritten text to the original. A replaced piece is mapped as a whole."""
        start = self._original(span[0], bisect.bisect_right(self._starts, span[0]) - 1)
        if span[0] == span[1]:
            return start, start
        return start, self._original(span[1], bisect.bisect_left(self._starts, span[1]) - 1)

    def _original(self, position: int, index: int) -> int:
        if index < 0:
            return 0
        origin, length = self._origins[index]
        inside = position - self._starts[index]
        if len(self.texts[index]) == length:
            return origin + inside
        return origin + (length if inside else 0)


def _rename_in_model(model: dict[str, Any], sentinels: Mapping[str, str]) -> None:
    """Rename special tokens in the model's own vocabulary too: some models match a whole known word at once."""
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: [piece, score] by id
        model["vocab"] = [[sentinels.get(piece, piece), score] for piece, score in vocab]
        return
    # A token that merges build is also an ordinary token, and the merges use its name.
    built = {"".join(m) if isinstance(m, list) else m.replace(" ", "", 1) for m in model.get("merges", ())}
    own = (vocab.keys() & sentinels.keys()) - built
    renamed = {content: sentinels[content] for content in own if len(content) > 1}
    model["vocab"] = {renamed.get(token, token): token_id for token, token_id in vocab.items()}
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]


def _id_of(backend: tokenizers.Tokenizer, token: str) -> int:
    token_id = backend.token_to_id(token)
    assert token_id is not None, f"added token {token!r} is lost"
    return int(token_id)
