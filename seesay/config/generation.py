"""Options of one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from seesay.config import foreign as foreign_options
from seesay.config.checks import accept_defaults, check_types, require
from seesay.config.grammar import Grammar, read_grammar
from seesay.config.processor_calls import check_processor
from seesay.errors import ConfigError

UNLIMITED_TOKENS = 1 << 24
"""`max_new_tokens` of an answer that only its EOS, `max_length` or the model are to end."""
MAX_ANSWERS = 1024
"""Most answers to one prompt."""


@accept_defaults(foreign_options.GENERATION)
@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Options of sampling and of the end of an answer.

    n: answers to each prompt. best_of: answers to generate for each prompt, of which the n with the highest mean
        log-probability of their tokens are returned. See docs/answers.md.
    do_sample: sample by temperature, top-k (0: off), top-p and min-p, in this order. Without it, decoding is greedy.
    random_seed: makes sampling repeatable. Of several answers, the next ones have the seeds random_seed + 1, + 2, ….
    logprobs: number of alternatives to report per token.
    prompt_logprobs: number of alternatives to report per token of the prompt after its first; 0 reports its own alone.
    presence_penalty, frequency_penalty: -2 to 2, subtracted from the logit of each token in the answer so far: once, or
        once per occurrence.
    logit_bias: maps token ids to -100 … 100, added to their logits.
    ignore_eos: continue after the model's EOS, and after the special tokens that end a turn of the chat template.
    allowed_token_ids: the only tokens that the answer may have, an EOS among them if it is to end by one; None allows
        all.
    bad_words: strings that never appear in the text of the answer, also inside of longer words, however they are cut
        into tokens.
    no_repeat_ngram_size: no n-gram of so many tokens comes twice in prompt and answer; 0 is off.
    ngram_window: only the last so many tokens count for the n-gram options; 0: all.
    whitelist_token_ids: tokens that may come though they complete an n-gram a second time.
    repetition_ngram_size, repetition_ngram_threshold: end the answer when its last `size` tokens occurred `threshold`
        times in it, with the stop reason 'repetition'; 0 is off.
    max_thinking_tokens: most tokens of the thought with which a reasoning model begins its answer; the thought is then
        ended. See docs/reasoning.md.
    min_new_tokens: tokens to generate before a stop word or EOS may end the answer.
    output_logits, output_last_hidden_state: None, 'generation', or 'all' (the prompt too).
    response_format: the grammar that the answer follows, in one of the forms that `seesay.config.grammar.read_grammar`
        lists, such as {'type': 'json_schema', 'json_schema': {'name': 'person', 'schema': {…}}}. See
        docs/structured_output.md.
    logits_processors: called as f(token_ids [T], logits [V]) -> logits [V], one sequence at a time. Also by name, for
        an engine in another process: 'package.module:function', or {'qualname': …, 'args': […], 'kwargs': {…}}, which
        is called to make one. EngineConfig.logits_processor_pattern says which names are allowed.
    """

    n: int = 1
    best_of: int | None = None
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
    allowed_token_ids: Sequence[int] | None = None
    min_new_tokens: int | None = None
    max_thinking_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    response_format: Mapping[str, Any] | None = None
    logits_processors: Sequence[Callable[[Any, Any], Any] | str | Mapping[str, Any]] | None = None
    output_logits: Literal["all", "generation"] | None = None
    output_last_hidden_state: Literal["all", "generation"] | None = None
    include_stop_str_in_output: bool = False
    no_repeat_ngram_size: int = 0
    ngram_window: int = 0
    whitelist_token_ids: Sequence[int] | None = None
    repetition_ngram_size: int = 0
    repetition_ngram_threshold: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        require(1 <= self.n <= MAX_ANSWERS, "n", self.n, f"must be in [1, {MAX_ANSWERS}]")
        is_enough = self.best_of is None or self.n <= self.best_of <= MAX_ANSWERS
        require(is_enough, "best_of", self.best_of, f"must be in [n, {MAX_ANSWERS}], with n={self.n}")
        if self.response_format is not None and self.grammar is not None and self.ignore_eos:
            raise ConfigError("ignore_eos=True cannot be combined with response_format: the grammar says where it ends")
        self._check_sampling()
        self._check_lists()
        self._check_counts()

    def _check_sampling(self) -> None:
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

    def _check_lists(self) -> None:
        biases = (self.logit_bias or {}).items()
        is_bias = all(token_id >= 0 and -100 <= bias <= 100 for token_id, bias in biases)
        require(is_bias, "logit_bias", self.logit_bias, "must map token ids to numbers in [-100, 100]")
        for name in ("stop_words", "bad_words"):
            words = getattr(self, name) or ()
            require(all(words), name, words, "must be a list of non-empty strings")
        for name in ("no_repeat_ngram_size", "ngram_window", "repetition_ngram_size", "repetition_ngram_threshold"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must be at least 0 (0 turns it off)")
        self._check_token_ids()

    def _check_token_ids(self) -> None:
        is_any = self.allowed_token_ids is None or len(self.allowed_token_ids) > 0
        require(is_any, "allowed_token_ids", self.allowed_token_ids, "must have at least one token id")
        for name in ("stop_token_ids", "bad_token_ids", "allowed_token_ids", "whitelist_token_ids"):
            ids = getattr(self, name) or ()
            require(all(token_id >= 0 for token_id in ids), name, ids, "must be a list of token ids")

    def _check_counts(self) -> None:
        for name in ("min_new_tokens", "max_thinking_tokens"):
            count = getattr(self, name)
            require(count is None or count >= 0, name, count, "must be at least 0")
        is_reachable = (self.min_new_tokens or 0) <= self.max_new_tokens
        require(
            is_reachable, "min_new_tokens", self.min_new_tokens, f"must be at most max_new_tokens={self.max_new_tokens}"
        )
        for processor in self.logits_processors or ():
            check_processor(processor)
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            require(count is None or 0 <= count <= 1024, name, count, "must be in [0, 1024]")

    @cached_property
    def grammar(self) -> Grammar | None:
        """The grammar that `response_format` asks for; None for free text."""
        return read_grammar(self.response_format)
