"""Tokenize prompts, for routes that count or return token ids. The model computes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from seesay.errors import RequestError
from seesay.serving.errors import ApiError
from seesay.serving.requests.field_names import ENGINE_NAMES, FieldNames

if TYPE_CHECKING:
    from seesay.serving.requests.state import ServerState
    from seesay.values import GenerationRequest

T = TypeVar("T")


async def tokenize_prompt(
    state: ServerState, request: GenerationRequest, names: FieldNames = ENGINE_NAMES, *, index: int = 0
) -> list[int]:
    """Return the token ids of a request's prompt, including the placeholders of pictures and videos.

    `names` are the client's, `index` says which of its prompts it is. Raises the same `ApiError` as answering the
    request would, and 504 after `request_timeout_s`.
    """
    token_ids = await _bounded(state, asyncio.wrap_future(state.engine.tokenize(request)), names, index)
    return [int(token_id) for token_id in token_ids]


async def tokenize_text(state: ServerState, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return the token ids of a raw text. Raises `ApiError` if it is many times too long for a prompt."""
    return await _bounded(
        state,
        asyncio.to_thread(state.engine.tokenize_text, text, add_special_tokens=add_special_tokens),
        FieldNames(prompts=("prompt",)),
    )


async def count_tokens(state: ServerState, request: GenerationRequest, names: FieldNames) -> int:
    """Return the number of tokens in a request's prompt, also if it is too long. Pictures are measured, not decoded.
    Raises the errors of `tokenize_prompt`."""
    return await _bounded(state, asyncio.to_thread(state.engine.count_tokens, request), names)


async def _bounded(state: ServerState, work: Awaitable[T], names: FieldNames, index: int = 0) -> T:
    timeout_s = state.settings.request_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise ApiError(504, f"the prompt was not ready within {timeout_s:g} s", kind="server_error") from None
    except RequestError as error:
        raise names.explain(error, index=index) from error
