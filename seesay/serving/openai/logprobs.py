"""Tokens and their log-probabilities in OpenAI's format: text, bytes, alternatives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seesay.processors.text.byte_alphabet import byte_alphabet
from seesay.values.prompt_logprobs import NO_TOKEN

if TYPE_CHECKING:
    from seesay.processors.text.tokenizer import Tokenizer
    from seesay.values.prompt_logprobs import PromptLogprobs

_MIN_LOGPROB = -9999.0  # OpenAI's value for probability 0; JSON has no infinity
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenSpeller:
    """Return the bytes of single tokens. A token that holds part of a character gives bytes that are not UTF-8.

    as_ids: entries name tokens `token_id:N`, for clients that need to know which of several with one text it is.
    """

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self.tokenizer = tokenizer
        self._as_ids = as_ids
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        spelled = self._known.get(token_id)
        if spelled is None:
            spelled = self._known[token_id] = self._spell(token_id)
        return spelled

    def text_of(self, token_id: int) -> str:
        return self.bytes_of(token_id).decode(errors="replace")

    def name_of(self, token_id: int) -> str:
        """Return how an entry names a token."""
        return f"token_id:{token_id}" if self._as_ids else self.text_of(token_id)

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
            "tokens": [self.name_of(token_id) for token_id in token_ids],
            "token_logprobs": [finite(entry[token_id]) for token_id, entry in zip(token_ids, logprobs)],
            "top_logprobs": [
                {self.name_of(i): finite(entry[i]) for i in (*(i for i, _ in _best(entry, num_top)), token_id)}
                for token_id, entry in zip(token_ids, logprobs)
            ],
            "text_offset": list(offsets),
        }

    def echo_entries(
        self, token_ids: Sequence[int], logprobs: PromptLogprobs, num_top: int, offsets: Sequence[int]
    ) -> dict[str, list[Any]]:
        """Return `choices[].logprobs` of an echoed prompt. Its first token has none, nor have those without a logit."""
        given = logprobs.to_list()
        known = [{token_id: 0.0} if entry is None else entry for token_id, entry in zip(token_ids, given)]
        entries = self.completion_entries(token_ids, known, num_top, offsets)
        for index, entry in enumerate(given):
            if entry is None:
                entries["token_logprobs"][index] = entries["top_logprobs"][index] = None
        return entries

    def prompt_entries(self, logprobs: PromptLogprobs) -> list[dict[str, Any] | None]:
        """Return `prompt_logprobs` as vLLM does: by token id, of the prompt's token and the most likely ones; null for
        the first position and where a picture or video is."""
        found: list[dict[str, object] | None] = [None]
        for ids, values, rank in zip(*(part.tolist() for part in logprobs.as_arrays()), strict=True):
            if ids[0] == NO_TOKEN:
                found.append(None)
                continue
            ranked = {ids[0]: (values[0], rank)} | {
                token_id: (value, index)
                for index, (token_id, value) in enumerate(zip(ids[1:], values[1:], strict=True), start=1)
            }
            found.append({str(token_id): self._ranked(token_id, *entry) for token_id, entry in ranked.items()})
        return found

    def prompt_field(self, logprobs: PromptLogprobs | None) -> dict[str, Any]:
        """Return the field `prompt_logprobs`, where it was asked for."""
        return {} if logprobs is None else {"prompt_logprobs": self.prompt_entries(logprobs)}

    def _ranked(self, token_id: int, logprob: float, rank: int) -> dict[str, object]:
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": self.text_of(token_id)}

    def _entry(self, token_id: int, logprob: float) -> dict[str, object]:
        name, spelled = self.name_of(token_id), self.bytes_of(token_id)
        return {"token": name, "logprob": finite(logprob), "bytes": list(spelled)}


def _best(alternatives: Mapping[int, float], num_top: int) -> list[tuple[int, float]]:
    return sorted(alternatives.items(), key=lambda item: -item[1])[:num_top]


def finite(logprob: float) -> float:
    """Return a log-probability that JSON has."""
    return max(logprob, _MIN_LOGPROB)
