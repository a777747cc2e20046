"""The limits of a scheduler, and the errors of prompts that exceed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from seesay.errors import ErrorCode, RequestError

if TYPE_CHECKING:
    from seesay.llm.plans.traits import LengthScaling
    from seesay.llm.scheduling.pools.block_pool import BlockPool


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a scheduler.

    max_batch_size: most running sequences. max_prefill_token_num: most tokens in a step.
    max_streamed_tokens: most prompt tokens in a step that also computes streamed answers, so that none of them waits
        long for a prompt. max_encoding_tokens: most prompt tokens in a step while embeddings are being made, so that
        those already made are used soon. None: no such limit.
    session_len: most tokens of a sequence, prompt and answer.
    length_scaling: how the keys of a sequence depend on its length (`DecoderTraits`). None: they do not.
    max_encode_ahead_tokens: most embedding rows asked for and not used yet.
    attends_media: see `DecoderTraits`. An embedding counts among those rows for as long as tokens attend to it.
    num_adapter_slots: adapters that may be in use at a time.
    media_run, is_prefix_lm: see `DecoderConfig`. Tokens that see each other are computed in one step, for which it may
        exceed all limits: see `find_max_step_tokens`.
    num_micro_batches: steps that are computed at the same time, in stages: none begins at a token that an earlier one
        samples, and answers that go on are divided among them.
    """

    max_batch_size: int
    max_prefill_token_num: int
    session_len: int
    max_streamed_tokens: int | None = None
    max_encoding_tokens: int | None = None
    max_encode_ahead_tokens: int = 32768
    length_scaling: LengthScaling | None = None
    num_adapter_slots: int = 0
    media_run: int = 0
    attends_media: bool = False
    is_prefix_lm: bool = False
    num_micro_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_prefill_token_num", "session_len", "max_encode_ahead_tokens"):
            assert getattr(self, name) >= 1, f"{name}={getattr(self, name)}"
        assert self.max_streamed_tokens is None or self.max_streamed_tokens >= 1, self.max_streamed_tokens


def find_max_step_tokens(max_prefill_token_num: int, *, session_len: int, media_run: int, is_prefix_lm: bool) -> int:
    """Return the most tokens of a step, which takes all of a run that it begins with, although it has room for one
    token. The longest prompt that is a run is one that a step without anything else has room for."""
    longest = min(max_prefill_token_num, session_len) if is_prefix_lm else media_run
    return max_prefill_token_num + max(0, longest - 1)


def check_prompt_length(num_tokens: int, session_len: int, *, wants_answer: bool) -> None:
    """Raise `RequestError` for a prompt that is too long, or leaves no room for the answer that is wanted."""
    if num_tokens + wants_answer > session_len:
        what = "prompt and answer together may have" if wants_answer else "it may have"
        raise RequestError(
            ErrorCode.CONTEXT_TOO_LONG,
            f"the prompt has {num_tokens} tokens, but {what} {session_len} (session_len): shorten it, or use fewer or "
            "smaller pictures",
            "messages",
        )


def check_run_length(num_tokens: int, max_prefill_token_num: int) -> None:
    """Raise `RequestError` for a prompt whose tokens see each other, but are too many to be computed in one step."""
    if num_tokens > max_prefill_token_num:
        raise RequestError(
            ErrorCode.CONTEXT_TOO_LONG,
            f"the prompt has {num_tokens} tokens, but a step takes {max_prefill_token_num} (max_prefill_token_num), "
            "and each token of a prompt to this model sees all others: shorten the prompt, use fewer pictures, or "
            "raise max_prefill_token_num",
            "messages",
        )


def find_misfit(num_tokens: int, pool: BlockPool) -> RequestError | None:
    """Return the error of a sequence that is larger than the whole pool."""
    need = pool.blocks_for(num_tokens)
    if need <= pool.num_blocks:
        return None
    return RequestError(
        ErrorCode.OUT_OF_MEMORY,
        f"{num_tokens} tokens need {need} KV blocks of {pool.block_size} tokens, but the cache has "
        f"{pool.num_blocks}: shorten the request, or give the cache more memory",
    )
