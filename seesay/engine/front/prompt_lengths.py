"""How long a prompt may be. What is too long is refused before it is rendered, tokenized or decoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from seesay.engine.front.request_facts import wants_answer
from seesay.errors import ErrorCode, RequestError
from seesay.llm.scheduling.scheduler_config import check_prompt_length, check_run_length
from seesay.processors.text.long_text import has_more_tokens

if TYPE_CHECKING:
    from seesay.processors.text.tokenizer import Tokenizer
    from seesay.values import GenerationRequest

_LEAST_CHARS, _CHARS_PER_TOKEN, _LEAST_PARTS = 1 << 20, 64, 4096
"""Most of a conversation before its template, which may leave out what earlier turns thought."""
_COUNTED_LENGTHS = 4


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """The limits of one model. Its checks raise `RequestError`.

    session_len: most tokens of a prompt and its answer. max_run: most of a prompt each of whose tokens sees all others;
    None where they see those before them alone.
    """

    session_len: int
    max_run: int | None

    @property
    def counted(self) -> int:
        """Most tokens of a prompt that is only counted, or is cut."""
        return _COUNTED_LENGTHS * self.session_len

    def find_room(self, request: GenerationRequest) -> int:
        """Return the most tokens that a prompt that is cut may have: -1 leaves room for the answer, or for one token
        where its length is not limited."""
        assert request.truncate_prompt_tokens is not None
        if request.truncate_prompt_tokens > 0:
            return request.truncate_prompt_tokens
        if not wants_answer(request):
            return self.session_len
        max_new_tokens = request.gen_config.max_new_tokens
        return self.session_len - (max_new_tokens if max_new_tokens < self.session_len else 1)

    def check_run(self, num_tokens: int) -> None:
        if self.max_run is not None:
            check_run_length(num_tokens, self.max_run)

    def check_size(self, texts: Iterable[str], max_tokens: int) -> None:
        """Refuse what is too long for any template to shorten it to `max_tokens`, before one looks at it."""
        num_chars = num_parts = 0
        for text in texts:
            num_chars += len(text)
            num_parts += 1
        for count, most, what in (
            (num_chars, max(_LEAST_CHARS, _CHARS_PER_TOKEN * max_tokens), "characters"),
            (num_parts, max(_LEAST_PARTS, max_tokens), "messages and parts"),
        ):
            if count > most:
                self.fail(f"{count} {what}; at most {most} are taken")

    def check_ids(self, num_tokens: int, max_tokens: int, *, wants_answer: bool) -> None:
        """Refuse more token ids than `max_tokens`, before each of them is looked at."""
        if max_tokens == self.session_len:
            check_prompt_length(num_tokens, max_tokens, wants_answer=wants_answer)
        elif num_tokens > max_tokens:
            self.fail(f"{num_tokens} token ids; at most {max_tokens} are taken")

    def check_text(self, text: str, max_tokens: int, tokenizer: Tokenizer) -> None:
        """Refuse a text that is certain to have more than `max_tokens` tokens, before all of it is tokenized."""
        if has_more_tokens(tokenizer.backend, text, max_tokens):
            self.fail(f"{len(text)} characters, which are more than {max_tokens} tokens")

    def fail(self, why: str) -> NoReturn:
        raise RequestError(
            ErrorCode.CONTEXT_TOO_LONG,
            f"the prompt has {why}; prompt and answer together may have {self.session_len} (session_len): shorten it",
            "messages",
        )
