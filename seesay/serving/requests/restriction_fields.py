"""Fields that say what an answer may hold and must not, or at which repetition it ends."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from seesay.serving.requests.fields import StopTexts, StrictModel, TokenIds
from seesay.serving.requests.shared_fields import AnswerFields

_MAX_WORDS, _MAX_WORDS_CHARS = 256, 4096


class ProcessorCall(StrictModel):
    """A logits processor that a call of a name makes."""

    qualname: str
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class RestrictionFields(AnswerFields):
    """Of all routes that generate an answer and take sampling options."""

    allowed_token_ids: TokenIds | None = Field(
        None, json_schema_extra={"minItems": 1}, description="extension: the only tokens that the answer may have"
    )
    bad_words: StopTexts | None = Field(
        None, description="extension: texts that the answer never has, also inside of longer words"
    )
    no_repeat_ngram_size: int | None = Field(
        None, ge=0, lt=1 << 31, description="extension: no n-gram of so many tokens comes twice; 0 is off"
    )
    ngram_window: int | None = Field(
        None, ge=0, lt=1 << 31, description="extension: only the last so many tokens count for n-grams; 0: all"
    )
    whitelist_token_ids: TokenIds | None = Field(
        None, description="extension: tokens that may complete an n-gram a second time"
    )
    repetition_ngram_size: int | None = Field(
        None, ge=0, lt=1 << 31, description="extension: see repetition_ngram_threshold; 0 is off"
    )
    repetition_ngram_threshold: int | None = Field(
        None,
        ge=0,
        lt=1 << 31,
        description="extension: end the answer when its last repetition_ngram_size tokens came so often; 0 is off",
    )

    logits_processors: list[str | ProcessorCall] | None = Field(
        None, max_length=16, description="extension: names of functions that --logits-processor-pattern allows"
    )

    @field_validator("bad_words")
    @classmethod
    def _check_bad_words(cls, words: list[str] | None) -> list[str] | None:
        if not all(words or ()):
            raise ValueError(f"a word must not be empty, got '' at index {(words or []).index('')}")
        if len(words or ()) > _MAX_WORDS:
            raise ValueError(f"at most {_MAX_WORDS} words are allowed, got {len(words or ())}")
        num_chars = sum(map(len, words or ()))
        if num_chars > _MAX_WORDS_CHARS:
            raise ValueError(f"at most {_MAX_WORDS_CHARS} characters are allowed in all, got {num_chars}")
        return words

    def restrictions(self) -> dict[str, Any]:
        """Return the fields by their names in `GenerationConfig`."""
        return {
            "allowed_token_ids": self.allowed_token_ids,
            "bad_words": self.bad_words or None,
            "logits_processors": self._processors() or None,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "ngram_window": self.ngram_window,
            "whitelist_token_ids": self.whitelist_token_ids,
            "repetition_ngram_size": self.repetition_ngram_size,
            "repetition_ngram_threshold": self.repetition_ngram_threshold,
        }

    def _processors(self) -> list[str | dict[str, object]]:
        return [
            given if isinstance(given, str) else given.model_dump(exclude_none=True)
            for given in self.logits_processors or ()
        ]
