"""Options of one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seesay.config import foreign as foreign_options
from seesay.config.checks import accept_defaults, check_types, refuse_unsupported, require


@accept_defaults(foreign_options.GENERATION)
@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Options of sampling and of the end of an answer.

    do_sample: sample by temperature, top-k (0: off), top-p and min-p, in this order. Without it, decoding is greedy.
    random_seed: makes sampling repeatable.
    logprobs: number of alternatives to report per token.
    presence_penalty, frequency_penalty: -2 to 2, subtracted from the logit of each token in the answer so far: once, or
        once per occurrence.
    logit_bias: maps token ids to -100 … 100, added to their logits.
    ignore_eos: continue after the model's EOS, and after the special tokens that end a turn of the chat template.
    min_new_tokens: tokens to generate before a stop word or EOS may end the answer.
    output_logits, output_last_hidden_state: None, 'generation', or 'all' (the prompt too).
    logits_processors: called as f(token_ids [T], logits [V]) -> logits [V], one sequence at a time.
    """

    n: int = 1
    max_new_tokens: int = 512
    do_sample: bool = False
    top_p: float = 1.0
    top_k: int = 50
    min_p: float = 0.0
    temperature: float = 0.8
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    ignore_eos: bool = False
    random_seed: int | None = None
    stop_words: Sequence[str] | None = None
    bad_words: Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_token_ids: Sequence[int] | None = None
    min_new_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    response_format: Mapping[str, Any] | None = None
    logits_processors: Sequence[Callable[[Any, Any], Any]] | None = None
    output_logits: Literal["all", "generation"] | None = None
    output_last_hidden_state: Literal["all", "generation"] | None = None
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        refuse_unsupported(self, {"n": (1,), "response_format": (None,)})
        require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "must be at least 1")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "must be in (0, 1]")
        require(self.top_k >= 0, "top_k", self.top_k, "must be at least 0 (0 turns it off)")
        require(0 <= self.min_p <= 1, "min_p", self.min_p, "must be in [0, 1]")
        require(self.temperature >= 0, "temperature", self.temperature, "must be at least 0 (0 is greedy)")
        require(
            0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "must be in [0.01, 100]",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            require(-2 <= getattr(self, name) <= 2, name, getattr(self, name), "must be in [-2, 2]")
        biases = (self.logit_bias or {}).items()
        is_bias = all(token_id >= 0 and -100 <= bias <= 100 for token_id, bias in biases)
        require(is_bias, "logit_bias", self.logit_bias, "must map token ids to numbers in [-100, 100]")
        for name in ("stop_words", "bad_words"):
            words = getattr(self, name) or ()
            require(all(words), name, words, "must be a list of non-empty strings")
        for name in ("stop_token_ids", "bad_token_ids"):
            ids = getattr(self, name) or ()
            require(all(token_id >= 0 for token_id in ids), name, ids, "must be a list of token ids")
        require(
            self.min_new_tokens is None or self.min_new_tokens >= 0,
            "min_new_tokens",
            self.min_new_tokens,
            "must be at least 0",
        )
        require(self.logprobs is None or 0 <= self.logprobs <= 1024, "logprobs", self.logprobs, "must be in [0, 1024]")
