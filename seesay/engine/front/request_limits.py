"""The limits of the fields of a request, whatever the form of the engine: one table, checked before it is prepared.

Fields of `GenerationConfig` have their own checks where one is built; here are those that depend on the model, and
those that a message to an engine process must be able to carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from seesay.config.checks import check_value
from seesay.config.generation import UNLIMITED_TOKENS, GenerationConfig
from seesay.errors import ConfigError, ErrorCode, RequestError, show
from seesay.values import GenerationRequest, Pooling

_MAX_SALT_CHARS = 4096
_DEFAULT_MAX_TOKENS = GenerationConfig().max_new_tokens


class _Types:
    """The types of the fields of `GenerationRequest` that have not been read by now."""

    continuation: tuple[int, ...]
    template_options: Mapping[str, Any]
    enable_thinking: bool | None
    reasoning_effort: str | None
    pooling: Pooling | None
    kept_tokens: tuple[str, ...]
    wants_answer: bool
    max_length: int | None
    streams: bool
    priority: int
    cache_salt: str
    truncate_prompt_tokens: int | None
    add_special_tokens: bool
    chat_template: str | None


class _Limit(NamedTuple):
    """A number of a request, None where it is not given, and the least and greatest that it may be."""

    name: str
    value: int | None
    least: int
    most: int
    why: str = ""


def check_limits(request: GenerationRequest, *, session_len: int, vocab_size: int) -> None:
    """Raise `RequestError` that names a field of `request` with a value that it may not have."""
    for name in _Types.__annotations__:
        try:
            check_value(_Types, name, getattr(request, name))
        except ConfigError as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, str(error), name) from None
    for limit in _limits_of(request, session_len, vocab_size):
        if limit.value is not None and not limit.least <= limit.value <= limit.most:
            message = f"{limit.name} must be in [{limit.least}, {limit.most}]{limit.why}, got {show(limit.value)}"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, limit.name)
    if request.truncate_prompt_tokens == 0:
        message = "truncate_prompt_tokens must be -1 or at least 1, got 0"
        raise RequestError(ErrorCode.INVALID_REQUEST, message, "truncate_prompt_tokens")


def _limits_of(request: GenerationRequest, session_len: int, vocab_size: int) -> Iterator[_Limit]:
    config = request.gen_config
    context = f" (the context has {session_len} tokens)"
    yield _Limit("random_seed", config.random_seed, -(1 << 63), (1 << 64) - 1)
    if config.max_new_tokens != UNLIMITED_TOKENS:
        most = max(session_len, _DEFAULT_MAX_TOKENS)
        yield _Limit("max_new_tokens", config.max_new_tokens, 0, most, context)
    yield _Limit("max_length", request.max_length, 1, (1 << 63) - 1)
    yield _Limit("priority", request.priority, -(1 << 63), (1 << 63) - 1)
    yield _Limit("cache_salt", len(request.cache_salt), 0, _MAX_SALT_CHARS, " characters")
    yield _Limit("truncate_prompt_tokens", request.truncate_prompt_tokens, -1, (1 << 63) - 1)
    if request.continuation:
        for value in (min(request.continuation), max(request.continuation)):
            yield _Limit("continuation", value, 0, vocab_size - 1, ", the token ids of the vocabulary")
