"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.errors import show
from seesay.serving.anthropic.blocks import BlockWriter
from seesay.serving.anthropic.content import read_conversation
from seesay.serving.anthropic.protocol import (
    CountTokensRequest,
    MessageAnswer,
    MessagesErrorResponse,
    MessagesRequest,
    TokensCount,
)
from seesay.serving.anthropic.tool_fields import read_tools
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.http.streaming import EventStream, make_event
from seesay.serving.requests.answer_reading import AnswerReading
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.prompts import count_tokens
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.tools import Tools
from seesay.templates.parsers.answer_parser import AnswerParser
from seesay.values import GenerationRequest, Message, OutputDelta, TextPart, Usage

_PREFIX = "/v1/messages"
# By this, Anthropic's tool runner learns to send the whole conversation with each request.
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def make_router(state: ServerState) -> APIRouter:
    """Return the routes. Errors under their paths have Anthropic's envelope."""
    state.envelopes.register(_PREFIX, make_envelope)
    errors: dict[int | str, dict[str, object]] = {
        status: {"model": MessagesErrorResponse, "description": "an error"} for status in ("4XX", "5XX")
    }
    router = make_api_router("Anthropic", responses=errors)

    @router.post(
        _PREFIX,
        response_model=MessageAnswer,
        responses={
            200: {
                "description": "the answer; with stream=true, the events of `MessageStreamEvent`",
                "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/MessageStreamEvent"}}},
            }
        },
    )
    async def create_message(body: MessagesRequest, http: Request) -> Response:
        """Answer a conversation, pictures included."""
        reply = await off_loop(http, _Reply, state, body, http)
        names = reply.reading.names
        await state.try_grammar(reply.request, names, http, left_out=reply.reading.left_out)
        if body.stream:
            return EventStream(reply.stream(), render_error=_make_error_event)
        answers = await state.answering.collect([reply.request], receive=http.receive, caller=reply.caller, names=names)
        return JSONResponse(reply.make_message(answers[0].text, answers[0].last))

    @router.post(f"{_PREFIX}/count_tokens", response_model=TokensCount)
    async def count(body: CountTokensRequest, http: Request) -> Response:
        """Count the tokens in the prompt of a request, pictures included. No answer is generated."""
        state.check_model(body.model)
        prompt, options = await off_loop(http, _read_prompt, state, body, read_tools(body.tools, body.tool_choice))
        config = state.defaults.make_config(max_new_tokens=1)
        names = body.field_names("messages")
        request = GenerationRequest(
            prompt=prompt, gen_config=config, template_options=options, **body.request_options()
        )
        request = state.fit_model(request, names, http)
        return JSONResponse(TokensCount(input_tokens=await count_tokens(state, request, names)).model_dump())

    return router


def make_envelope(error: ApiError) -> dict[str, Any]:
    """Return Anthropic's body of an error: `{"type": "error", "error": {"type", "message"}}`."""
    kind = _KINDS.get(error.status_code) or ("invalid_request_error" if error.status_code < 500 else "api_error")
    details = {"details": _NO_THREADS} if error.param == "thread" else {}
    return {"type": "error", "error": {"type": kind, "message": error.message, **details}}


def _make_error_event(error: ApiError) -> bytes:
    return make_event(make_envelope(error), name="error")


def _read_prompt(
    state: ServerState, body: CountTokensRequest, tools: Tools
) -> tuple[tuple[Message, ...], dict[str, object]]:
    """Return the messages, and the options of the chat template."""
    media = body.media_options(state.engine.family)
    prompt = media.fill_messages(read_conversation(body.system, body.messages, state.settings.media))
    return prompt, {**_continue_final(prompt), **tools.for_template(state.engine.chat_template)}


def _continue_final(prompt: tuple[Message, ...]) -> dict[str, object]:
    """Return the template's option for a final assistant turn, which is continued as the beginning of the answer.
    Raises `ApiError` if it ends in whitespace."""
    last = prompt[-1]
    if last.role != "assistant" or last.extra:
        return {}
    text = last.parts[-1].text if last.parts and isinstance(last.parts[-1], TextPart) else ""
    if text[-1:].isspace():
        raise bad_request(
            f"messages: the final assistant content must not end with whitespace, got {show(text[-40:])}", "messages"
        )
    return {"continue_final": True}


class _Reply:
    """The answer to one request, complete or streamed."""

    def __init__(self, state: ServerState, body: MessagesRequest, http: Request) -> None:
        """Read the body. Raises `ApiError` if it cannot be answered. Nothing is computed yet."""
        state.check_model(body.model)
        self._state = state
        self._stop_sequences = body.stop_sequences or []
        self._max_tokens = body.max_tokens
        tools = read_tools(body.tools, body.tool_choice)
        self.reading = AnswerReading.choose(state.engine, tools, body.answer_format, body.field_names("messages"))
        config = state.defaults.make_config(
            # The field is required, so clients send the limit of a model that they know.
            max_new_tokens=min(body.max_tokens, state.engine.session_len),
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            stop_words=body.stop_sequences or None,
            response_format=self.reading.grammar,
            max_thinking_tokens=body.thought_limit,
            names=self.reading.names,
        )
        prompt, options = _read_prompt(state, body, tools)
        request = GenerationRequest(
            prompt=prompt,
            gen_config=config,
            template_options=options,
            kept_tokens=self.reading.kept_tokens,
            streams=bool(body.stream),
            **body.request_options(),
        )
        self.request = state.fit_model(request, self.reading.names, http)
        answer_id = f"msg_{secrets.token_hex(12)}"
        self.caller = caller_of(http.scope, answer_id=answer_id)
        self._head = {
            "id": answer_id,
            "type": "message",
            "role": "assistant",
            "model": state.name_model(body.model),
        }

    def make_message(self, text: str, last: OutputDelta) -> dict[str, Any]:
        """Return the `MessageAnswer` as JSON. An empty answer has no blocks."""
        writer = BlockWriter()
        parser = self.reading.open(is_thinking=last.is_thinking)
        for part in [*parser.feed(text), *parser.finish()]:
            writer.write(part)
        writer.end()
        return {
            **self._head,
            "content": writer.blocks,
            **self._make_stop(last, has_calls=writer.has_calls),
            "usage": _make_usage(last.usage),
        }

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the events, from `message_start` to `message_stop`."""
        writer = BlockWriter()
        parser: AnswerParser | None = None
        answering, names = self._state.answering, self.reading.names
        async with aclosing(answering.deltas([self.request], caller=self.caller, names=names)) as deltas:
            async for _, delta in deltas:
                if parser is None:
                    parser = self.reading.open(is_thinking=delta.is_thinking)
                    yield self._make_start()
                parts = parser.feed(delta.text)
                if delta.finish_reason is not None:
                    parts += parser.finish()
                for part in parts:
                    for event in writer.write(part):
                        yield event
        for event in writer.end():
            yield event
        stop = self._make_stop(delta, has_calls=writer.has_calls)
        yield _event({"type": "message_delta", "delta": stop, "usage": _make_usage(delta.usage)})
        yield _event({"type": "message_stop"})

    def _make_start(self) -> bytes:
        nothing_yet: dict[str, object] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _make_usage(None),
        }
        return _event({"type": "message_start", "message": {**self._head, **nothing_yet}})

    def _make_stop(self, last: OutputDelta, *, has_calls: bool) -> dict[str, object]:
        """Return the stop reason, and the stop sequence that was found."""
        if last.finish_reason == "length":
            usage = last.usage or Usage()
            is_full = usage.completion_tokens < self._max_tokens
            return {"stop_reason": "model_context_window_exceeded" if is_full else "max_tokens", "stop_sequence": None}
        found = last.stop_reason
        if isinstance(found, int):  # a token id, whose text may be one of the stop sequences
            ids = {self._state.engine.tokenizer.token_id(word): word for word in self._stop_sequences}
            found = ids.get(found)
        if found is not None and found in self._stop_sequences:
            return {"stop_reason": "stop_sequence", "stop_sequence": found}
        return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}


def _event(data: dict[str, Any]) -> bytes:
    return make_event(data, name=data["type"])


def _make_usage(usage: Usage | None) -> dict[str, int]:
    """Return Anthropic's usage, which counts cached prompt tokens separately."""
    usage = usage or Usage()
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
