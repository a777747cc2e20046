"""How one sequence's tokens are chosen and when it ends, at the level of token ids. Holds data only, no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from seesay.config import GenerationConfig

LEAST_TEMPERATURE = 1e-5
"""Below it sampling is greedy: logits divided by less leave the range of float32."""

LARGEST = 1 << 62
"""No count and no token id is larger. So every number of a sequence fits in 64 bits, on any way to a runner."""


class NamedProcessor(NamedTuple):
    """A logits processor by its import path, for the process of the engine. arguments: JSON {"args": […], "kwargs":
    {…}}, with which the name is called to make the processor; None: it is the processor itself."""

    name: str
    arguments: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Token-level sampling options of a sequence.

    greedy: take the most likely token; temperature, top_k (0: off), top_p, min_p and seed then do nothing.
    eos_token_ids end the sequence unless `ignore_eos`, stop_token_ids always do, both after `min_new_tokens` tokens.
    bad_token_ids are never chosen, and only allowed_token_ids where there are any. max_new_tokens bounds the generated
    tokens; with 0 nothing is sampled, the prompt is computed for its outputs alone.
    bad_words never appear in the text of the answer, however it is cut into tokens. no_repeat_ngram_size: no n-gram of
    so many tokens comes twice in prompt and answer; 0 is off.
    ngram_window: only the last so many tokens count for the n-gram options; 0: all. whitelist_token_ids may complete
    an n-gram a second time.
    repetition_ngram_size, repetition_ngram_threshold: the sequence ends when the last so many generated tokens occurred
    so often among the generated ones; 0 is off.
    presence_penalty and frequency_penalty count generated tokens only; logit_bias has (token id, bias) pairs.
    pooling: 'mean' asks for the sum of the last hidden states of the prompt's positions, 'last' for that of the last
        position, 'tokens' for a vector of each; no text is wanted.
    logprobs: number of alternatives to report per generated token; None reports nothing.
    prompt_logprobs: number of alternatives to report beside each prompt token after the first; None reports nothing.
    output_logits, output_last_hidden_state: None, 'generation' or 'all' (prompt positions too).
    logits_processors: functions, called in order as f(token_ids [T], logits [V]) -> logits [V], and `NamedProcessor`s,
    which the process of the engine imports.
    """

    greedy: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    no_repeat_ngram_size: int = 0
    ngram_window: int = 0
    whitelist_token_ids: tuple[int, ...] = ()
    repetition_ngram_size: int = 0
    repetition_ngram_threshold: int = 0
    ignore_eos: bool = False
    min_new_tokens: int = 0
    max_new_tokens: int = 512
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    output_logits: Literal["all", "generation"] | None = None
    output_last_hidden_state: Literal["all", "generation"] | None = None
    logits_processors: tuple[Any, ...] = ()
    pooling: Literal["mean", "last", "tokens"] | None = None

    is_plain: bool = field(init=False, repr=False, compare=False)
    """Whether the sampler only has to return the most likely token."""
    is_plainly_drawn: bool = field(init=False, repr=False, compare=False)
    """Whether the sampler only has to draw a token."""
    is_plainly_masked: bool = field(init=False, repr=False, compare=False)
    """Whether the sampler only has to do one of these with what a mask allows, where there is one."""

    def __post_init__(self) -> None:
        is_held_back = self.min_new_tokens > 0 and self.ending_token_ids
        asks_more = self.logprobs is not None or self.changes_logits or is_held_back
        object.__setattr__(self, "is_plain", not (asks_more or self.is_drawn))
        object.__setattr__(self, "is_plainly_drawn", self.is_drawn and not asks_more)
        object.__setattr__(self, "is_plainly_masked", self.logprobs is None and not self.changes_scores)

    @property
    def changes_logits(self) -> bool:
        """Whether single logits are changed before each token is chosen."""
        return self.changes_scores or bool(self.bad_token_ids or self.no_repeat_ngram_size)

    @property
    def changes_scores(self) -> bool:
        """Whether they are changed by more than bans."""
        return bool(self.has_penalties or self.logit_bias)

    @property
    def has_restrictions(self) -> bool:
        """Whether masks forbid tokens, besides those of a grammar and of a thought."""
        return bool(self.bad_words or self.no_repeat_ngram_size or self.allowed_token_ids)

    @property
    def needs_masks(self) -> bool:
        """Whether the host makes masks for this, which know the token before. N-grams of more than one token are found
        without it (`logit_changes.ban_repeats`)."""
        return bool(self.bad_words or self.allowed_token_ids or self.no_repeat_ngram_size == 1)

    @property
    def is_drawn(self) -> bool:
        """Whether chance decides. Top-k of 1 leaves one token, even where two are equally likely."""
        return not self.greedy and self.top_k != 1

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens before."""
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)

    @property
    def needs_prompt_outputs(self) -> bool:
        """Whether every prompt position must be computed for its output: none may come from the prefix cache."""
        asks_for_all = "all" in (self.output_logits, self.output_last_hidden_state)
        return self.prompt_logprobs is not None or asks_for_all or self.pooling in ("mean", "tokens")

    @property
    def ending_token_ids(self) -> tuple[int, ...]:
        """The token ids that end the sequence once it has `min_new_tokens` tokens."""
        return self.stop_token_ids if self.ignore_eos else (*self.eos_token_ids, *self.stop_token_ids)

    def banned_token_ids(self, num_generated: int) -> tuple[int, ...]:
        """The token ids that must not come next, after `num_generated` generated tokens."""
        if num_generated < self.min_new_tokens:
            return (*self.bad_token_ids, *self.ending_token_ids)
        return self.bad_token_ids

    @classmethod
    def from_config(
        cls,
        config: GenerationConfig,
        *,
        eos_token_ids: Iterable[int] = (),
        stop_token_ids: Iterable[int] = (),
        bad_token_ids: Iterable[int] = (),
        bad_words: Iterable[str] = (),
        seed: int | None = None,
    ) -> SamplingParams:
        """The token-level part of `config`. The id arguments come from the tokenizer (end of sequence; `stop_words` and
        `bad_words` that are special tokens) and add to the ids in `config`; `bad_words` has the other ones. A
        temperature below `LEAST_TEMPERATURE` is greedy. `seed` is taken where `config` has none."""
        config = _with_plain_numbers(config)
        return cls(
            greedy=not config.do_sample or config.temperature < LEAST_TEMPERATURE,
            temperature=config.temperature,
            top_k=min(config.top_k, LARGEST),
            top_p=config.top_p,
            min_p=config.min_p,
            repetition_penalty=config.repetition_penalty,
            presence_penalty=config.presence_penalty,
            frequency_penalty=config.frequency_penalty,
            logit_bias=tuple((key, bias) for key, bias in (config.logit_bias or {}).items() if key < LARGEST),
            seed=seed if config.random_seed is None else config.random_seed,
            eos_token_ids=_join_ids(eos_token_ids),
            stop_token_ids=_join_ids(config.stop_token_ids, stop_token_ids),
            bad_token_ids=_join_ids(config.bad_token_ids, bad_token_ids),
            allowed_token_ids=_join_ids(config.allowed_token_ids),
            bad_words=tuple(dict.fromkeys(bad_words)),
            no_repeat_ngram_size=min(config.no_repeat_ngram_size, LARGEST),
            ngram_window=min(config.ngram_window, LARGEST),
            whitelist_token_ids=_join_ids(config.whitelist_token_ids),
            repetition_ngram_size=min(config.repetition_ngram_size, LARGEST),
            repetition_ngram_threshold=min(config.repetition_ngram_threshold, LARGEST),
            ignore_eos=config.ignore_eos,
            min_new_tokens=min(config.min_new_tokens or 0, LARGEST),
            max_new_tokens=min(config.max_new_tokens, LARGEST),
            logprobs=config.logprobs,
            prompt_logprobs=config.prompt_logprobs,
            output_logits=config.output_logits,
            output_last_hidden_state=config.output_last_hidden_state,
            logits_processors=tuple(map(_read_processor, config.logits_processors or ())),
        )


def _read_processor(
    given: Callable[[Any, Any], Any] | str | Mapping[str, Any],
) -> Callable[[Any, Any], Any] | NamedProcessor:
    if isinstance(given, str):
        return NamedProcessor(given)
    if isinstance(given, Mapping):
        arguments = {"args": list(given.get("args") or ()), "kwargs": dict(given.get("kwargs") or {})}
        return NamedProcessor(given["qualname"], json.dumps(arguments))
    return given


def _join_ids(*groups: Iterable[int] | None) -> tuple[int, ...]:
    """The ids of all groups, each once; without those that no vocabulary has."""
    return tuple(dict.fromkeys(token_id for group in groups for token_id in group or () if token_id < LARGEST))


def _with_plain_numbers(config: GenerationConfig) -> GenerationConfig:
    """`config` with Python's numbers where it holds NumPy's, which overflow and are of other types."""
    changes = {name: value.item() for name, value in vars(config).items() if hasattr(value, "item")}
    return replace(config, **changes) if changes else config
