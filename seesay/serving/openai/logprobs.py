"""Tokens and their log-probabilities in OpenAI's format: text, bytes, alternatives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seesay.processors.text.byte_alphabet import byte_alphabet

if TYPE_CHECKING:
    from seesay.processors.text.tokenizer import Tokenizer

_MIN_LOGPROB = -9999.0  # OpenAI's value for probability 0; JSON has no infinity
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenSpeller:
    """Return the bytes of single tokens. A token that holds part of a character gives bytes that are not UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        spelled = self._known.get(token_id)
        if spelled is None:
            spelled = self._known[token_id] = self._spell(token_id)
        return spelled

    def text_of(self, token_id: int) -> str:
        return self.bytes_of(token_id).decode(errors="replace")

    def _spell(self, token_id: int) -> bytes:
        tokenizer = self.tokenizer
        if (added := tokenizer.added_tokens.get(token_id)) is not None:
            return added.encode()
        token = tokenizer.backend.id_to_token(token_id)
        if token is None:
            return b""
        if tokenizer.has_byte_level_decoder:
            alphabet = byte_alphabet()
            if all(character in alphabet for character in token):
                return bytes(alphabet[character] for character in token)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return str(token).replace("▁", " ").encode()

    # --- OpenAI's formats ------------------------------------------------------------------------------------------

    def chat_entries(
        self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, float]], num_top: int
    ) -> list[dict[str, Any]]:
        """Return `choices[].logprobs.content` of chat completions."""
        return [
            {
                **self._entry(token_id, alternatives[token_id]),
                "top_logprobs": [self._entry(i, value) for i, value in _best(alternatives, num_top)],
            }
            for token_id, alternatives in zip(token_ids, logprobs)
        ]

    def completion_entries(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[int, float]],
        num_top: int,
        offsets: Sequence[int],
    ) -> dict[str, list[Any]]:
        """Return `choices[].logprobs` of text completions. As in OpenAI's API, the alternatives include the chosen
        token even if it is not one of the `num_top` most likely."""
        return {
            "tokens": [self.text_of(token_id) for token_id in token_ids],
            "token_logprobs": [_finite(entry[token_id]) for token_id, entry in zip(token_ids, logprobs)],
            "top_logprobs": [
                {self.text_of(i): _finite(entry[i]) for i in (*(i for i, _ in _best(entry, num_top)), token_id)}
                for token_id, entry in zip(token_ids, logprobs)
            ],
            "text_offset": list(offsets),
        }

    def prompt_entries(
        self, token_ids: Sequence[int], logprobs: Sequence[float], offsets: Sequence[int]
    ) -> dict[str, list[Any]]:
        """Return `choices[].logprobs` of an echoed prompt. `logprobs` start at its second token; the first has none."""
        known = [{token_id: value} for token_id, value in zip(token_ids, (0.0, *logprobs))]
        entries = self.completion_entries(token_ids, known, 0, offsets)
        entries["token_logprobs"][0] = entries["top_logprobs"][0] = None
        return entries

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self.bytes_of(token_id)
        return {"token": spelled.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(spelled)}


def _best(alternatives: Mapping[int, float], num_top: int) -> list[tuple[int, float]]:
    return sorted(alternatives.items(), key=lambda item: -item[1])[:num_top]


def _finite(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB)
