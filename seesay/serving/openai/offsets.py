"""Character offsets of tokens in a text: `text_offset` of text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.processors.text.long_text import encode_text
from seesay.values import RenderedPrompt

if TYPE_CHECKING:
    from seesay.processors.text.tokenizer import Tokenizer


class TextOffsets:
    """Compute the offsets of generated tokens. Each token begins where the text of the tokens before it ends.

    A token inside a character begins where the character begins. A token without text begins where the next text does.
    start: length of the text before the first token.
    """

    def __init__(
        self, tokenizer: Tokenizer, start: int, *, skip_special_tokens: bool, spaces_between_special_tokens: bool = True
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        self._next = start

    def push(self, token_ids: Sequence[int]) -> list[int]:
        """Return the offsets of the next tokens."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._next)
            self._next += len(self._detokenizer.push([token_id]).text)
        return offsets


def spell_prompt(
    tokenizer: Tokenizer, prompt: str | Sequence[int], *, takes_prefix: bool = True
) -> tuple[str, list[int], list[int]]:
    """Return the text, token ids and offsets of a raw prompt, given as text or as ids. Tokens that the tokenizer adds
    in front of the text, if it takes them, have offset 0."""
    if not isinstance(prompt, str):
        ids = list(prompt)
        text = tokenizer.decode(ids, skip_special_tokens=False)
        return text, ids, TextOffsets(tokenizer, 0, skip_special_tokens=False).push(ids)
    ids = tokenizer.encode_prompt(RenderedPrompt(text=prompt, takes_prefix=takes_prefix))[0].tolist()
    offsets: list[int] = []
    stop = 0
    for token_start, token_stop in encode_text(tokenizer.backend, prompt).offsets:
        offsets.append(min(token_start, stop))  # a space trimmed from a token's span still belongs to the token
        stop = token_stop
    return prompt, ids, [0] * (len(ids) - len(offsets)) + offsets[-len(ids) :]
