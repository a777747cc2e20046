"""How one request is answered: a `GenerationConfig` with what DashInfer has beside it, and a builder of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from seesay.config import GenerationConfig
from seesay.config.checks import check_types, check_value, require
from seesay.config.generation import UNLIMITED_TOKENS
from seesay.errors import ConfigError

_FROM_CHECKPOINT = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_length")
"""Options that a generation_config.json has under the same name and with the same meaning."""


@dataclass(frozen=True, kw_only=True)
class RequestConfig:
    """How to answer one request.

    max_length: most tokens of the prompt and its answer together, beside the configuration's `max_new_tokens`.
    stop_words_ids: token ids of words that end the answer; each ends it where its text appears.
    """

    generation: GenerationConfig = field(default_factory=GenerationConfig)
    max_length: int | None = None
    stop_words_ids: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        check_types(self)
        length = self.max_length
        require(length is None or length >= 2, "max_length", length, "must be at least 2: a prompt and an answer")
        words = self.stop_words_ids
        is_ids = all(word and all(token_id >= 0 for token_id in word) for word in words)
        require(is_ids, "stop_words_ids", words, "must be a list of non-empty lists of token ids")
        for name, one in (("n", 1), ("best_of", None)):
            if (value := getattr(self.generation, name)) != one:
                raise ConfigError(f"{name}={value}: a queue has one answer; start a request for each")


def _check(method: str, options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a wrong value; how options go together is checked when all are there."""
    try:
        for name, value in options.items():
            check_value(GenerationConfig, name, value)
            if name != "ignore_eos":
                RequestConfig(generation=GenerationConfig(**{"max_new_tokens": UNLIMITED_TOKENS, name: value}))
    except ConfigError as error:
        prefix = "" if str(error).startswith((method, "response_format")) else f"{method}: "
        raise ConfigError(f"{prefix}{error}") from None


def _check_flag(method: str, flag: bool) -> bool:
    require(isinstance(flag, bool), method, flag, "must be True or False")
    return flag


class GenerationConfigBuilder:
    """Build a `RequestConfig` step by step. Every method but `build` returns the builder. A value is checked by the
    method that takes it, which raises `ConfigError`.

    It starts with the defaults of `GenerationConfig`, without `max_new_tokens`: an answer ends with its EOS, at
    `max_length`, or at the model's.
    """

    def __init__(self, recommended: Mapping[str, Any] | Any = None) -> None:
        """`recommended`: a mapping like generation_config.json, or a `GenerationConfig` of Transformers, whose sampling
        options and `max_length` or `max_new_tokens` are taken over. What else it has concerns other programs."""
        self._options: dict[str, Any] = {"max_new_tokens": UNLIMITED_TOKENS}
        self._max_length: int | None = None
        self._stop_words_ids: Sequence[Sequence[int]] = ()
        self._top_logprobs = 0
        self._suppresses = False
        given = recommended.to_dict() if hasattr(recommended, "to_dict") else dict(recommended or {})
        for name in _FROM_CHECKPOINT:
            if (value := given.get(name)) is not None:
                getattr(self, name)(value)
        if (value := given.get("max_new_tokens")) is not None:
            self.options(max_new_tokens=value)
            self._max_length = None  # Transformers lets it take precedence
        if (value := given.get("no_repeat_ngram_size")) is not None:
            self.no_repeat_ngram_size(value)

    # --- sampling ---------------------------------------------------------------------------------------------------

    def do_sample(self, flag: bool = True) -> Self:
        """Sample; without it, decoding is greedy."""
        return self._set("do_sample", do_sample=flag)

    def temperature(self, value: float) -> Self:
        return self._set("temperature", temperature=value)

    def top_k(self, value: int) -> Self:
        """Sample among so many tokens; 0 among all."""
        return self._set("top_k", top_k=value)

    def top_p(self, value: float) -> Self:
        return self._set("top_p", top_p=value)

    def min_p(self, value: float) -> Self:
        return self._set("min_p", min_p=value)

    def seed(self, value: int) -> Self:
        """Make sampling repeatable."""
        return self._set("seed", random_seed=value)

    # --- length and end ---------------------------------------------------------------------------------------------

    def max_length(self, num_tokens: int) -> Self:
        """Most tokens of the prompt and its answer together."""
        RequestConfig(max_length=num_tokens)
        self._max_length = num_tokens
        return self

    def max_new_tokens(self, num_tokens: int) -> Self:
        """Most tokens of the answer."""
        return self._set("max_new_tokens", max_new_tokens=num_tokens)

    def min_length(self, num_tokens: int) -> Self:
        """Least tokens of the answer; 0 for any number."""
        return self._set("min_length", min_new_tokens=num_tokens)

    def early_stopping(self, flag: bool = True) -> Self:
        """End the answer with the model's EOS; it is on from the start."""
        return self._set("early_stopping", ignore_eos=not _check_flag("early_stopping", flag))

    def eos_token_id(self, token_id: int) -> Self:
        """One more token that ends the answer; the checkpoint's do so anyway."""
        return self._set("eos_token_id", stop_token_ids=[*self._options.get("stop_token_ids", ()), token_id])

    def stop_words_ids(self, words: Sequence[Sequence[int]]) -> Self:
        """Words that end the answer, as token ids each."""
        RequestConfig(stop_words_ids=words)
        self._stop_words_ids = words
        return self

    # --- penalties --------------------------------------------------------------------------------------------------

    def repetition_penalty(self, value: float) -> Self:
        return self._set("repetition_penalty", repetition_penalty=value)

    def presence_penalty(self, value: float) -> Self:
        """Subtracted from the logits of tokens that the answer has."""
        return self._set("presence_penalty", presence_penalty=value)

    def frequency_penalty(self, value: float) -> Self:
        return self._set("frequency_penalty", frequency_penalty=value)

    def suppress_repetition_in_generation(self, flag: bool = True) -> Self:
        """Let `presence_penalty` alone act on the tokens of the answer; `repetition_penalty` must then be 1."""
        self._suppresses = _check_flag("suppress_repetition_in_generation", flag)
        return self

    def no_repeat_ngram_size(self, size: int) -> Self:
        """Never repeat so many tokens in a row; 0 turns it off."""
        return self._set("no_repeat_ngram_size", no_repeat_ngram_size=size)

    def length_penalty(self, value: float) -> Self:
        """An exponent of beam search, which `Pipeline.beam_search` does: only 1."""
        require(value == 1, "length_penalty", value, "is not supported, only 1.0")
        return self

    # --- outputs ----------------------------------------------------------------------------------------------------

    def logprobs(self, flag: bool = True) -> Self:
        """Return the log-probability of each token, and with `top_logprobs` of the most likely ones."""
        return self._set("logprobs", logprobs=self._top_logprobs if _check_flag("logprobs", flag) else None)

    def top_logprobs(self, count: int) -> Self:
        """How many of the most likely tokens `logprobs` returns."""
        _check("top_logprobs", {"logprobs": count})
        require(count is not None, "top_logprobs", count, "must be an integer")
        self._top_logprobs = count
        return self.logprobs() if self._options.get("logprobs") is not None else self

    def response_format(self, form: Mapping[str, object]) -> Self:
        """The grammar that the answer follows: docs/structured_output.md."""
        return self._set("response_format", response_format=form)

    # --- others -----------------------------------------------------------------------------------------------------

    def lora_name(self, name: str) -> Self:
        """Only '': `Pipeline.infer` takes the names of adapters."""
        require(name == "", "lora_name", name, "is not supported, only ''")
        return self

    def mm_info(self, info: None) -> Self:
        """Pictures are part of the prompt: only None."""
        if info is not None:
            raise ConfigError("mm_info is not supported: give (text, picture) or messages as the prompt")
        return self

    def options(self, **options: object) -> Self:
        """Set any options of `GenerationConfig` by name."""
        known = {each.name for each in fields(GenerationConfig)}
        if unknown := sorted(options.keys() - known):
            raise ConfigError(f"options: GenerationConfig has no {unknown[0]!r}")
        return self._set("options", **options)

    def _set(self, method: str, **options: object) -> Self:
        """Take over options of `GenerationConfig` from the builder's `method`, which an error names."""
        _check(method, options)
        self._options |= options
        return self

    def build(self) -> RequestConfig:
        """Return the configuration. Raises `ConfigError` for options that contradict each other."""
        penalty = self._options.get("repetition_penalty", 1.0)
        if self._suppresses and penalty != 1:
            raise ConfigError(
                f"repetition_penalty={penalty!r} must be 1 with suppress_repetition_in_generation: presence_penalty "
                "takes its place"
            )
        return RequestConfig(
            generation=GenerationConfig(**self._options),
            max_length=self._max_length,
            stop_words_ids=self._stop_words_ids,
        )
