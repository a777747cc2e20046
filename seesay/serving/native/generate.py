"""`/generate`: texts or token ids in, texts and token ids out, without a chat template."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.serving.bodies import make_api_router, off_loop
from seesay.serving.caller import Caller, caller_of
from seesay.serving.content import read_pictures
from seesay.serving.native.protocol import GenerateAnswer, GenerateRequest
from seesay.serving.openai.wire import DONE, make_error_event
from seesay.serving.state import ServerState
from seesay.serving.streaming import EventStream, make_event
from seesay.values import GenerationRequest, OutputDelta

_PARAM_NAMES = {"max_new_tokens": "max_tokens", "random_seed": "seed", "stop_words": "stop"}


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
        caller = caller_of(http.scope)
        if body.stream:
            events = _stream(state, request, caller, wants_logprobs=body.return_logprob)
            return EventStream(events, render_error=make_error_event)
        (answer,) = await state.answering.collect(
            [request], receive=http.receive, caller=caller, fields=(_field_of(request),)
        )
        logprobs = answer.logprobs if body.return_logprob else None
        return JSONResponse(_make_answer(answer.text, answer.token_ids, logprobs, answer.last))

    return router


def _make_request(state: ServerState, body: GenerateRequest) -> GenerationRequest:
    pictures = read_pictures(body.image_data, state.settings.media, "image_data")
    config = state.defaults.make_config(
        max_new_tokens=body.max_tokens,
        logprobs=0 if body.return_logprob else None,
        spaces_between_special_tokens=body.spaces_between_special_tokens,
        param_names=_PARAM_NAMES,
        **body.sampling(),
    )
    return GenerationRequest(
        prompt=body.prompt if body.prompt is not None else tuple(body.input_ids or ()),
        gen_config=config,
        media=pictures,
        streams=bool(body.stream),
    )


def _field_of(request: GenerationRequest) -> str:
    return "prompt" if isinstance(request.prompt, str) else "input_ids"


async def _stream(
    state: ServerState, request: GenerationRequest, caller: Caller, *, wants_logprobs: bool
) -> AsyncGenerator[bytes, None]:
    async with aclosing(state.answering.deltas([request], caller=caller, fields=(_field_of(request),))) as deltas:
        async for _, delta in deltas:
            logprobs = (delta.logprobs or ()) if wants_logprobs else None
            yield make_event(_make_answer(delta.text, delta.token_ids, logprobs, delta))
    yield DONE


def _make_answer(
    text: str, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, float]] | None, delta: OutputDelta
) -> dict[str, Any]:
    details: dict[str, Any] = {"finish_reason": delta.finish_reason and {"type": delta.finish_reason}}
    if delta.usage is not None:
        details |= {
            "prompt_tokens": delta.usage.prompt_tokens,
            "completion_tokens": delta.usage.completion_tokens,
            "cached_tokens": delta.usage.cached_tokens,
        }
    if logprobs is not None:
        details["output_token_logprobs"] = [[entry[i], i] for i, entry in zip(token_ids, logprobs)]
    return {"text": text, "output_ids": list(token_ids), "meta_info": details}
