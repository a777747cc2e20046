"""`/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.engine.front.choices import choices_of
from seesay.serving.errors import bad_request
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.http.streaming import EventStream, LastEvents, describe_events
from seesay.serving.openai.answer_models import ChatCompletion
from seesay.serving.openai.chat_message import MessageStream, find_finish_reason, make_message, make_stop_field
from seesay.serving.openai.logprobs import TokenSpeller
from seesay.serving.openai.protocol import ChatCompletionRequest
from seesay.serving.openai.shape_fields import ShapeFields
from seesay.serving.openai.stream_chunks import ChunkWriter
from seesay.serving.openai.tool_fields import read_chat_tools
from seesay.serving.openai.wire import (
    FINGERPRINT,
    make_details,
    make_error_event,
    make_id,
    make_usage,
    wants_timings,
)
from seesay.serving.requests.answer_reading import AnswerReading, ReadAnswer
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.content import read_messages, text_of
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import Answer, Tally
from seesay.serving.traffic.metrics import media_of
from seesay.values import GenerationRequest, OutputDelta

if TYPE_CHECKING:
    from seesay.values.prompt_logprobs import PromptLogprobs


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
        reading = reply.reading
        await state.try_grammar(reply.requests[0], reading.names, http, left_out=reading.left_out)
        if body.stream:
            return EventStream(reply.stream(), render_error=make_error_event)
        answers = await state.answering.collect(
            reply.requests,
            receive=http.receive,
            caller=reply.caller,
            names=reading.names,
            beams=reply.beams,
        )
        return await reply.make_response(answers)

    return router


class ChatReply:
    """The answer to one chat request, complete or streamed."""

    def __init__(self, state: ServerState, body: ChatCompletionRequest, http: Request) -> None:
        """Read the body. Raises `ApiError` if it cannot be answered. Nothing is computed yet."""
        state.check_model(body.model)
        state.check_chat_template(body.chat_template)
        self._num_returned = body.n or 1
        self._num_choices, field = body.num_choices
        state.check_num_choices(1, self._num_choices, field)
        tools = read_chat_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        self.reading = AnswerReading.choose(
            state.engine,
            tools,
            body.answer_format,
            body.field_names("messages"),
            brings_template=body.chat_template is not None,
        )
        self._num_top = body.top_logprobs or 0
        self._wants_logprobs = bool(body.logprobs)
        config = state.defaults.make_config(
            max_new_tokens=body.max_new_tokens,
            logprobs=self._num_top if self._wants_logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
            names=self.reading.names,
            **{**body.sampling(), "response_format": self.reading.grammar},
        )
        self.beams = body.make_beams(self._num_choices, config, self.reading.names, thinks=not self.reading.is_plain)
        messages = body.media_options(state.engine.family).fill_messages(
            read_messages(body.messages, state.settings.media)
        )
        self._echo = text_of(messages[-1]) if body.echo and messages[-1].role == "assistant" else ""
        request = GenerationRequest(
            prompt=messages,
            gen_config=config,
            template_options={**body.template_options, **self.reading.template_options},
            kept_tokens=self.reading.kept_tokens,
            **body.request_options(),
            streams=bool(body.stream),
        )
        if len(media_of(request)) * self._num_choices > state.settings.media.max_items:
            why = f"{field}={self._num_choices} is too large for a conversation with so many media"
            raise bad_request(why, field)
        request = state.fit_model(request, self.reading.names, http)
        self.requests = choices_of(request, self._num_choices)
        self._state = state
        self._speller = TokenSpeller(state.engine.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._returns_ids = bool(body.return_token_ids)
        self._shapes = ShapeFields.of_request(body.return_boxes, self.reading.grammar)
        self._wants_timings = wants_timings(http)
        answer_id = body.name_answer("chatcmpl-", make_id("chatcmpl-"))
        self.caller = caller_of(http.scope, body.rid or body.request_id, answer_id)
        self._head = {
            "id": answer_id,
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": state.name_model(body.model),
            "system_fingerprint": FINGERPRINT,
        }
        self._chunks = ChunkWriter(self._head, "delta", body.stream_options)

    # --- complete --------------------------------------------------------------------------------------------------

    async def make_response(self, answers: Sequence[Answer]) -> JSONResponse:
        """Return the answer. Long ones are rendered by a thread."""
        if answers[0].prompt_logprobs is None:
            return JSONResponse(self.make_completion(answers))
        return await asyncio.to_thread(lambda: JSONResponse(self.make_completion(answers)))

    def make_completion(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the `ChatCompletion` as JSON."""
        tally = Tally(num_per_prompt=self._num_choices)
        choices = []
        for index, answer in enumerate(answers):
            tally.add(index, answer.last)
            if index >= self._num_returned:  # of beams, the best come first
                continue
            found = ReadAnswer.read(self.reading, answer.text, is_thinking=answer.last.is_thinking)
            choices.append(
                {
                    "index": index,
                    "message": make_message(found, begin=self._echo),
                    "logprobs": self._make_logprobs(answer.token_ids, answer.logprobs),
                    "finish_reason": find_finish_reason(answer.finish_reason, has_calls=bool(found.calls)),
                    **make_stop_field(answer.last),
                    **self._shapes.of(answer.text, answer.last),
                    **({"token_ids": answer.token_ids} if self._returns_ids else {}),
                }
            )
        details = {"seesay": make_details(tally)} if self._wants_timings else {}
        given = self._speller.prompt_field(answers[0].prompt_logprobs)
        return {**self._head, "choices": choices, "usage": make_usage(tally), **given, **details}

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
        messages: dict[int, MessageStream] = {}  # where the answers have more than text
        num_left = len(self.requests)
        answering, names = self._state.answering, self.reading.names
        async with aclosing(answering.deltas(self.requests, caller=self.caller, names=names)) as deltas:
            async for index, delta in deltas:
                events: list[bytes] = []
                if index not in begun:
                    begun.add(index)
                    events.append(self._make_begin(index))
                    if not self.reading.is_plain:
                        messages[index] = MessageStream(self.reading, is_thinking=delta.is_thinking)
                self._chunks.usage.add(index, delta)
                self._shapes.add(index, delta)
                if delta.prompt_logprobs is not None:
                    events.append(await self._make_prompt(index, delta.prompt_logprobs))
                if index in messages:
                    events += self._make_parts(index, messages[index].feed(delta), delta)
                elif self._says_something(delta):
                    events.append(self._make_content(index, delta))
                if delta.finish_reason is not None:
                    num_left -= 1
                    tally.add(index, delta)
                    events.append(self._make_finish(index, delta, messages.get(index), tally, num_left=num_left))
                    if not num_left:
                        details = make_details(tally) if self._wants_timings else None
                        events += self._chunks.write_end(make_usage(tally), details)
                if events:
                    yield b"".join(events) if num_left else LastEvents(b"".join(events))

    async def _make_prompt(self, index: int, prompt_logprobs: PromptLogprobs) -> bytes:
        given = await asyncio.to_thread(self._speller.prompt_field, prompt_logprobs)
        choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": None}
        return await asyncio.to_thread(self._chunks.encode, {"choices": [choice], **given})

    def _make_begin(self, index: int) -> bytes:
        content = self._echo or (None if self.reading.tools.callable else "")
        return self._chunks.write(index, {"role": "assistant", "content": content})

    def _make_finish(
        self, index: int, last: OutputDelta, message: MessageStream | None, tally: Tally, *, num_left: int
    ) -> bytes:
        is_last = not num_left and not self._chunks.usage.is_wanted
        details = make_details(tally) if is_last and self._wants_timings else None
        has_calls = message is not None and message.has_calls
        reason = find_finish_reason(last.finish_reason or "", has_calls=has_calls)
        more = {**make_stop_field(last), **self._shapes.end(index, last)}
        return self._chunks.write(index, {}, finish_reason=reason, details=details, more=more)

    def _make_parts(self, index: int, parts: list[dict[str, object]], delta: OutputDelta) -> list[bytes]:
        """Return the events of an answer with more than text. The first has the tokens of the delta, also where they
        make no text yet."""
        if not parts and not (delta.token_ids and (self._returns_ids or self._wants_logprobs)):
            return []
        first, *others = parts or [{}]
        logprobs = self._make_logprobs(delta.token_ids, delta.logprobs or ())
        token_ids = list(delta.token_ids) if self._returns_ids else None
        begin = self._chunks.write(index, first, logprobs=logprobs, token_ids=token_ids)
        return [begin, *(self._chunks.write(index, part) for part in others)]

    def _says_something(self, delta: OutputDelta) -> bool:
        return bool(delta.text or (delta.token_ids and (self._returns_ids or self._wants_logprobs)))

    def _make_content(self, index: int, delta: OutputDelta) -> bytes:
        if not (self._returns_ids or self._wants_logprobs or self._chunks.usage.is_continuous):
            return self._chunks.write_content(index, delta.text)
        return self._chunks.write(
            index,
            {"content": delta.text},
            logprobs=self._make_logprobs(delta.token_ids, delta.logprobs or ()),
            token_ids=list(delta.token_ids) if self._returns_ids else None,
        )
