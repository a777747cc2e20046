"""`/generate`: texts or token ids in, texts and token ids out, without a chat template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.http.streaming import EventStream, make_event
from seesay.serving.native.protocol import GenerateAnswer, GenerateRequest
from seesay.serving.openai.logprobs import finite
from seesay.serving.openai.wire import DONE, make_error_event
from seesay.serving.requests.caller import Caller, caller_of
from seesay.serving.requests.content import read_pictures
from seesay.serving.requests.field_names import FieldNames
from seesay.serving.requests.state import ServerState
from seesay.values import GenerationRequest, MediaPart, OutputDelta
from seesay.values.prompt_logprobs import PromptLogprobs

_DEFAULT_MAX_TOKENS = 128  # LMDeploy's default


def make_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = make_api_router("native")

    @router.post(
        "/generate",
        response_model=GenerateAnswer,
        responses={
            200: {
                "description": "the answer; with stream=true, events of the same shape, then `[DONE]`",
                "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/GenerateAnswer"}}},
            }
        },
    )
    async def generate(body: GenerateRequest, http: Request) -> Response:
        """Continue a text or token ids."""
        state.check_model(body.model)
        request = await off_loop(http, _make_request, state, body)
        await state.try_grammar(request, _names_of(body), http)
        caller = caller_of(http.scope, body.rid or body.request_id)
        if body.stream:
            events = _stream(state, body, request, caller)
            return EventStream(events, render_error=make_error_event)
        (answer,) = await state.answering.collect([request], receive=http.receive, caller=caller, names=_names_of(body))
        given = (body, answer.text, answer.token_ids, answer.logprobs, answer.last, answer.prompt_logprobs)
        if answer.prompt_logprobs is None:
            return JSONResponse(_make_answer(*given))
        return await asyncio.to_thread(lambda: JSONResponse(_make_answer(*given)))

    return router


def _make_request(state: ServerState, body: GenerateRequest) -> GenerationRequest:
    options = body.media_options(state.engine.family)
    pictures = read_pictures(body.image_data, state.settings.media, "image_data")
    count = body.top_logprobs_num or 0
    config = state.defaults.make_config(
        max_new_tokens=body.max_tokens or body.max_new_tokens or _DEFAULT_MAX_TOKENS,
        logprobs=count if body.return_logprob else None,
        prompt_logprobs=count if body.scores_prompt else None,
        names=_names_of(body),
        **body.sampling(),
    )
    return GenerationRequest(
        prompt=body.prompt if body.prompt is not None else tuple(body.input_ids or ()),
        gen_config=config,
        media=tuple(_place(list(map(options.fill, pictures)), body.image_positions)),
        streams=bool(body.stream),
        **body.request_options(),
    )


def _place(pictures: Sequence[MediaPart], positions: Sequence[int] | None) -> Sequence[MediaPart]:
    """Return the pictures of token ids at their positions there."""
    if positions is None:
        return pictures
    return [replace(picture, position=position) for picture, position in zip(pictures, positions, strict=True)]


def _names_of(body: GenerateRequest) -> FieldNames:
    return body.field_names("input_ids" if body.prompt is None else "prompt")


async def _stream(
    state: ServerState, body: GenerateRequest, request: GenerationRequest, caller: Caller
) -> AsyncGenerator[bytes, None]:
    async with aclosing(state.answering.deltas([request], caller=caller, names=_names_of(body))) as deltas:
        async for _, delta in deltas:
            given = (body, delta.text, delta.token_ids, delta.logprobs or (), delta, delta.prompt_logprobs)
            if delta.prompt_logprobs is None:
                yield make_event(_make_answer(*given))
            else:  # it may be long
                yield make_event(await asyncio.to_thread(_make_answer, *given))
    yield DONE


def _make_answer(
    body: GenerateRequest,
    text: str,
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, float]],
    delta: OutputDelta,
    prompt_logprobs: PromptLogprobs | None,
) -> dict[str, object]:
    details: dict[str, object] = {"finish_reason": delta.finish_reason and {"type": delta.finish_reason}}
    if request_id := body.rid or body.request_id:
        details["id"] = request_id
    if delta.usage is not None:
        details |= {
            "prompt_tokens": delta.usage.prompt_tokens,
            "completion_tokens": delta.usage.completion_tokens,
            "cached_tokens": delta.usage.cached_tokens,
        }
    if body.return_logprob:
        details |= _make_logprobs(body, token_ids, logprobs, prompt_logprobs)
    return {"text": text, "output_ids": list(token_ids), "meta_info": details}


def _make_logprobs(
    body: GenerateRequest,
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, float]],
    prompt_logprobs: PromptLogprobs | None,
) -> dict[str, object]:
    """Return the log-probabilities that `meta_info` has."""
    count = body.top_logprobs_num
    found: dict[str, object] = {
        "output_token_logprobs": [[finite(entry[i]), i] for i, entry in zip(token_ids, logprobs)]
    }
    if count is not None:
        found["output_top_logprobs"] = [_rank(entry, count) for entry in logprobs]
    if prompt_logprobs is not None:
        found |= _make_prompt_logprobs(prompt_logprobs, body.logprob_start_len or 0, count)
    return found


def _make_prompt_logprobs(logprobs: PromptLogprobs, start: int, count: int | None) -> dict[str, object]:
    entries = logprobs.to_list()[start:]
    own = [None, *zip(map(finite, logprobs.values[:, 0].tolist()), logprobs.ids[:, 0].tolist())][start:]
    found: dict[str, object] = {
        "input_token_logprobs": [None if entry is None else pair for entry, pair in zip(entries, own)]
    }
    if count is not None:
        found["input_top_logprobs"] = [None if entry is None else _rank(entry, count) for entry in entries]
    return found


def _rank(entry: Mapping[int, float], count: int) -> list[list[float]]:
    """Return the most likely tokens as (log-probability, token id)."""
    return [[finite(value), token_id] for token_id, value in sorted(entry.items(), key=lambda item: -item[1])[:count]]
