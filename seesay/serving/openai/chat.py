"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.engine.asking import choices_of
from seesay.serving.answers import Answer, Tally
from seesay.serving.bodies import make_api_router, off_loop
from seesay.serving.caller import caller_of
from seesay.serving.content import read_messages
from seesay.serving.errors import bad_request
from seesay.serving.metrics import media_of
from seesay.serving.openai.logprobs import TokenSpeller
from seesay.serving.openai.protocol import ChatCompletion, ChatCompletionRequest
from seesay.serving.openai.wire import (
    DONE,
    FINGERPRINT,
    SAMPLING_PARAM_NAMES,
    make_details,
    make_error_event,
    make_id,
    make_usage,
    wants_timings,
)
from seesay.serving.state import ServerState
from seesay.serving.streaming import EventStream, LastEvents, describe_events, encode_json
from seesay.values import GenerationRequest, OutputDelta

_HOLE = "\x00"  # placeholder in a pre-rendered event: JSON encodes it in one way, and no model name contains it


def make_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = make_api_router("OpenAI")

    @router.post(
        "/v1/chat/completions",
        response_model=ChatCompletion,
        responses={
            200: {
                "description": "the answer; with stream=true, events of `ChatCompletionChunk`, then `[DONE]`",
                "content": describe_events("ChatCompletionChunk"),
            }
        },
    )
    async def create_chat_completion(body: ChatCompletionRequest, http: Request) -> Response:
        """Answer a conversation, pictures and videos included."""
        reply = await off_loop(http, ChatReply, state, body, http)
        if body.stream:
            return EventStream(reply.stream(), render_error=make_error_event)
        answers = await state.answering.collect(reply.requests, receive=http.receive, caller=caller_of(http.scope))
        return JSONResponse(reply.make_completion(answers))

    return router


class ChatReply:
    """The answer to one chat request, complete or streamed."""

    def __init__(self, state: ServerState, body: ChatCompletionRequest, http: Request) -> None:
        """Read the body. Raises `ApiError` if it cannot be answered. Nothing is computed yet."""
        state.check_model(body.model)
        self._num_choices = body.n or 1
        state.check_num_choices(1, self._num_choices)
        self._num_top = body.top_logprobs or 0
        self._wants_logprobs = bool(body.logprobs)
        config = state.defaults.make_config(
            max_new_tokens=body.max_new_tokens,
            logprobs=self._num_top if self._wants_logprobs else None,
            param_names=SAMPLING_PARAM_NAMES,
            **body.sampling(),
        )
        request = GenerationRequest(
            prompt=read_messages(body.messages, state.settings.media),
            gen_config=config,
            template_options=body.template_options,
            streams=bool(body.stream),
        )
        if len(media_of(request)) * self._num_choices > state.settings.media.max_items:
            raise bad_request(f"n={self._num_choices} is too large for a conversation with so many media", "n")
        self.requests = choices_of(request, self._num_choices)
        self._state = state
        self._speller = TokenSpeller(state.engine.tokenizer)
        self._returns_ids = bool(body.return_token_ids)
        self._includes_usage = body.stream_options is not None and body.stream_options.include_usage
        self._wants_timings = wants_timings(http)
        self._caller = caller_of(http.scope)
        self._frames: dict[int, bytes] = {}  # pre-rendered event with `_HOLE` in place of the text, by choice
        self._head = {
            "id": make_id("chatcmpl-"),
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": state.model_name,
            "system_fingerprint": FINGERPRINT,
        }
        self._head_json = encode_json(self._head)[:-1]

    # --- complete --------------------------------------------------------------------------------------------------

    def make_completion(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the `ChatCompletion` as JSON."""
        tally = Tally(num_per_prompt=self._num_choices)
        choices = []
        for index, answer in enumerate(answers):
            tally.add(index, answer.last)
            choices.append(
                {
                    "index": index,
                    "message": {"role": "assistant", "content": answer.text, "refusal": None},
                    "logprobs": self._make_logprobs(answer.token_ids, answer.logprobs),
                    "finish_reason": answer.finish_reason,
                    **({"token_ids": answer.token_ids} if self._returns_ids else {}),
                }
            )
        details = {"seesay": make_details(tally)} if self._wants_timings else {}
        return {**self._head, "choices": choices, "usage": make_usage(tally), **details}

    def _make_logprobs(self, token_ids: Sequence[int], logprobs: Sequence[Any]) -> dict[str, Any] | None:
        if not self._wants_logprobs:
            return None
        return {"content": self._speller.chat_entries(token_ids, logprobs, self._num_top), "refusal": None}

    # --- streamed --------------------------------------------------------------------------------------------------

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the events, those of one delta together: per choice the role, pieces of text, a finish reason; then
        usage if requested, `[DONE]`."""
        tally = Tally(num_per_prompt=self._num_choices)
        begun: set[int] = set()
        num_left = len(self.requests)
        async with aclosing(self._state.answering.deltas(self.requests, caller=self._caller)) as deltas:
            async for index, delta in deltas:
                events: list[bytes] = []
                if index not in begun:
                    begun.add(index)
                    events.append(self._make_chunk(index, {"role": "assistant", "content": ""}))
                if self._says_something(delta):
                    events.append(self._make_content(index, delta))
                if delta.finish_reason is not None:
                    num_left -= 1
                    tally.add(index, delta)
                    is_last = not num_left and not self._includes_usage
                    details = make_details(tally) if is_last and self._wants_timings else None
                    events.append(self._make_chunk(index, {}, finish_reason=delta.finish_reason, details=details))
                    if not num_left:
                        events += self._make_end(tally)
                if events:
                    yield b"".join(events) if num_left else LastEvents(b"".join(events))

    def _make_end(self, tally: Tally) -> list[bytes]:
        if not self._includes_usage:
            return [DONE]
        details = {"seesay": make_details(tally)} if self._wants_timings else {}
        return [self._encode({"choices": [], "usage": make_usage(tally), **details}), DONE]

    def _says_something(self, delta: OutputDelta) -> bool:
        return bool(delta.text or (delta.token_ids and (self._returns_ids or self._wants_logprobs)))

    def _make_content(self, index: int, delta: OutputDelta) -> bytes:
        if not self._returns_ids and not self._wants_logprobs:
            # The most frequent event by far: everything but the text is rendered once.
            return self._content_frame(index) % encode_json(delta.text).encode()
        return self._make_chunk(
            index,
            {"content": delta.text},
            logprobs=self._make_logprobs(delta.token_ids, delta.logprobs or ()),
            token_ids=list(delta.token_ids) if self._returns_ids else None,
        )

    def _content_frame(self, index: int) -> bytes:
        frame = self._frames.get(index)
        if frame is None:
            event = self._make_chunk(index, {"content": _HOLE}).replace(b"%", b"%%")
            frame = self._frames[index] = event.replace(encode_json(_HOLE).encode(), b"%s")
        return frame

    def _make_chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        details: dict[str, Any] | None = None,
        token_ids: list[int] | None = None,
    ) -> bytes:
        ids = {} if token_ids is None else {"token_ids": token_ids}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason, **ids}
        usage = {"usage": None} if self._includes_usage else {}
        seesay = {} if details is None else {"seesay": details}
        return self._encode({"choices": [choice], **usage, **seesay})

    def _encode(self, rest: dict[str, Any]) -> bytes:
        """Return a chunk: the fields that all have, and the others."""
        return f"data: {self._head_json},{encode_json(rest)[1:]}\n\n".encode()
