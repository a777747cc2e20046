"""The bytes that the tokens of a vocabulary stand for in a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial

import tokenizers

from seesay.processors.text.byte_alphabet import byte_alphabet

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenSpelling:
    """Spells the tokens of one vocabulary. Thread-safe.

    is_byte_level: its tokens are bytes, in the alphabet of GPT-2.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        added_tokens: Mapping[int, str],
        special_ids: Collection[int],
        *,
        is_byte_level: bool,
    ) -> None:
        self._backend = backend
        self._added_tokens = added_tokens
        self._special_ids = special_ids
        self._is_byte_level = is_byte_level
        self._bytes: dict[int, bytes] = {}  # of the tokens that `bytes_of` was asked for

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token of a byte-level decoder stands for; nothing for an id outside the vocabulary."""
        data = self._bytes.get(token_id)
        if data is None:
            token: str | None = self._backend.id_to_token(token_id)
            if token is None:
                return b""
            alphabet = byte_alphabet()
            try:
                data = bytes([alphabet[char] for char in token])
            except KeyError:  # an added token with other characters is plain text
                data = token.encode()
            self._bytes[token_id] = data
        return data

    def spell(self, token_id: int) -> bytes:
        """Return what a token stands for in a text; nothing for a special token, or an id outside the vocabulary."""
        if token_id in self._special_ids:
            return b""
        if self._is_byte_level:
            return self.bytes_of(token_id)
        added = self._added_tokens.get(token_id)
        if added is not None:
            return added.encode()
        piece: str | None = self._backend.id_to_token(token_id)
        return b"" if piece is None else read_piece(piece)

    def spell_all(self, num_tokens: int) -> list[bytes]:
        """Return what each of the first tokens stands for in a text. Nothing for ids outside the vocabulary; for
        special tokens what stands in no text (a byte that is not UTF-8), so that grammars can name them by id only."""
        if self._is_byte_level:
            spell = self.bytes_of
        else:
            pieces = self._backend.get_vocab(with_added_tokens=False)
            by_id = {token_id: read_piece(piece) for piece, token_id in pieces.items()}
            by_id |= {token_id: text.encode() for token_id, text in self._added_tokens.items()}
            spell = partial(_find_bytes, by_id)
        special = {token_id: b"\xff" + self._added_tokens[token_id].encode() for token_id in self._special_ids}
        return [special.get(token_id) or spell(token_id) for token_id in range(num_tokens)]


def _find_bytes(by_id: Mapping[int, bytes], token_id: int) -> bytes:
    return by_id.get(token_id, b"")


def read_piece(piece: str) -> bytes:
    """Return the bytes of a token whose vocabulary writes spaces as U+2581 and bytes as <0x0A>."""
    if found := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(found[1], 16)])
    return piece.replace("\u2581", " ").encode()
