"""Decides how many prompt tokens the next step may have. Knows counts and waiting times; no sequences, no tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class WaitingPrompt(NamedTuple):
    """`num_tokens` tokens of one sequence that could be computed now, from position `start`. `wait_s`: seconds since
    the sequence was added."""

    start: int
    num_tokens: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What the next step has beside prompt tokens, and which prompts wait.

    num_decode_rows: rows of one token. num_decode_context: tokens that these rows attend to, in all.
    is_streamed: whether the answer of one of them is read while it is made.
    is_encoding: whether an embedding was asked for and is not ready.
    prompts: in the order in which they are computed. To be read once, and only as far as needed: many may wait. A
    prompt's cached beginning is not known before it is admitted, so it counts as if nothing were cached.
    """

    num_decode_rows: int
    num_decode_context: int
    is_streamed: bool
    is_encoding: bool
    prompts: Iterable[WaitingPrompt]


class StepPolicy(Protocol):
    """The scheduler asks it once for each step."""

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        """Return the most prompt tokens of the next step, at least 1; None for as many as the scheduler's own limits
        allow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedChunks:
    """The same number of tokens in every step of a kind; None is no limit.

    max_streamed_tokens: beside streamed answers, so that none of them waits long for the prompts of others.
    max_encoding_tokens: while embeddings are made, so that those already made are soon used.
    """

    max_streamed_tokens: int | None = None
    max_encoding_tokens: int | None = None

    def __post_init__(self) -> None:
        for limit in (self.max_streamed_tokens, self.max_encoding_tokens):
            assert limit is None or limit >= 1, self

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        streamed = self.max_streamed_tokens if load.is_streamed else None
        encoding = self.max_encoding_tokens if load.is_encoding else None
        return min((limit for limit in (streamed, encoding) if limit is not None), default=None)
