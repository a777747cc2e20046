"""`/v1/responses`: OpenAI's Responses API. Conversations can be continued by the id of a response."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.config import MediaLimits
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.http.streaming import EventStream, describe_events, make_event
from seesay.serving.openai.logprobs import TokenSpeller
from seesay.serving.openai.responses import stored_responses
from seesay.serving.openai.responses.background import BackgroundAnswers, Progress
from seesay.serving.openai.responses.conversations import extend_conversation
from seesay.serving.openai.responses.item_references import make_item_id, resolve_references
from seesay.serving.openai.responses.response_items import read_input
from seesay.serving.openai.responses.response_output import OutputWriter, Status, make_no_event
from seesay.serving.openai.responses.responses_protocol import (
    InputTokens,
    InputTokensRequest,
    ResponseObject,
    ResponseRequest,
)
from seesay.serving.openai.responses.stored_responses import find_stored
from seesay.serving.openai.tool_fields import read_response_tools
from seesay.serving.openai.wire import make_details, make_id, wants_timings
from seesay.serving.requests.answer_reading import AnswerReading
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.content import keep_media
from seesay.serving.requests.custom_tools import write_arguments
from seesay.serving.requests.prompts import count_tokens
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import Answer, Tally
from seesay.serving.stored.response_store import StoredResponse
from seesay.serving.traffic.auth import owner_of
from seesay.templates.parsers.answer_parser import AnswerParser
from seesay.templates.parsers.parts import AnswerPart, ContentText
from seesay.values import GenerationRequest, Message, OutputDelta, TextPart

_PREVIOUS = "previous_response_id"


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")
    background = BackgroundAnswers(state)

    @router.post(
        "/v1/responses",
        response_model=ResponseObject,
        responses={
            200: {
                "description": "the response; with stream=true, events of `ResponseEvent`",
                "content": describe_events("ResponseEvent"),
            }
        },
    )
    async def create_response(body: ResponseRequest, http: Request) -> Response:
        """Answer a text or a conversation, pictures included."""
        reply = await _read(state, http, body)
        names, left_out, is_background = reply.reading.names, reply.reading.left_out, bool(body.background)
        await state.try_grammar(reply.request, names, http, left_out=left_out, is_background=is_background)
        if is_background:
            queued = reply.make_queued()
            owner = owner_of(http.scope)
            if body.stream:
                await background.start(owner, queued, reply.stream_later, reply.events.write_error)
                return EventStream(background.follow(owner, queued.body["id"]), render_error=reply.events.write_error)
            await background.start(owner, queued, reply.answer_later)
            return JSONResponse(queued.body)
        if body.stream:
            return EventStream(reply.stream(), render_error=reply.events.write_error)
        answers = await state.answering.collect([reply.request], receive=http.receive, caller=reply.caller, names=names)
        return JSONResponse(await reply.complete(answers[0]))

    @router.post("/v1/responses/input_tokens", response_model=InputTokens)
    async def count_input_tokens(body: InputTokensRequest, http: Request) -> Response:
        """Count the tokens in the prompt of a request, pictures included. No answer is generated."""
        reply = await _read(state, http, body)
        count = await count_tokens(state, reply.request, reply.reading.names)
        return JSONResponse(InputTokens(input_tokens=count).model_dump())

    router.include_router(stored_responses.make_router(state, background))
    return router


async def _read(state: ServerState, http: Request, body: ResponseRequest) -> ResponseReply:
    """Return the answer to a request, which is not computed yet. Raises `ApiError` for one that cannot be answered."""
    state.check_model(body.model)
    earlier = await _find_earlier(state, http, body)
    whole = await resolve_references(state, http, body)
    return await off_loop(http, ResponseReply, state, earlier, whole, http)


async def _find_earlier(state: ServerState, http: Request, body: ResponseRequest) -> tuple[Message, ...]:
    """Return the conversation that a request continues. Raises `ApiError` 400 for one that cannot be continued."""
    if body.conversation_id is not None:
        found = await find_stored(state, http, body.conversation_id, "conversation", status=404, kind="conversation")
        return found.messages
    if body.previous_response_id is None:
        return ()
    stored = await find_stored(state, http, body.previous_response_id, _PREVIOUS, status=400)
    if (status := stored.body["status"]) not in ("completed", "incomplete"):
        raise bad_request(f"{_PREVIOUS}: that response has no answer, its status is {status!r}", _PREVIOUS)
    return stored.messages


def _read_asked(body: ResponseRequest, earlier: tuple[Message, ...], limits: MediaLimits) -> tuple[Message, ...]:
    """Return the messages that a request adds to the `earlier` ones: none where it only counts these."""
    if isinstance(body, InputTokensRequest) and body.input is None and earlier:
        return ()
    return read_input(body.input, earlier, limits)


class ResponseEvents:
    """Renders the events of one response, which are numbered."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def write(self, kind: str, **data: object) -> bytes:
        name = f"response.{kind}"
        return make_event({"type": name, "sequence_number": next(self._numbers), **data}, name=name)

    def write_error(self, error: ApiError) -> bytes:
        """Return the event that ends a failed response."""
        data = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return make_event({**data, "sequence_number": next(self._numbers)}, name="error")


class ResponseReply:
    """The answer to one request, complete or streamed."""

    def __init__(self, state: ServerState, earlier: tuple[Message, ...], body: ResponseRequest, http: Request) -> None:
        """Read the body, which continues the messages `earlier`. Raises `ApiError` if it cannot be answered. Nothing is
        computed yet."""
        self._state = state
        self._owner = owner_of(http.scope)
        self._body = body
        self._stores = body.store is not False and state.settings.max_stored_responses > 0
        options = body.media_options(state.engine.family)
        asked = _read_asked(body, earlier, state.settings.media)
        self._asked = options.fill_messages(asked)
        self._messages = (*earlier, *self._asked)
        self._tools = read_response_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        self.reading = AnswerReading.choose(state.engine, self._tools, body.answer_format, body.field_names("input"))
        if body.wants_logprobs and not self.reading.is_plain:
            name = "include" if body.include else "top_logprobs"
            why = f"{name} cannot ask for log-probabilities beside tools, nor of a model that thinks"
            raise bad_request(why, name, code="unsupported_parameter")
        config = state.defaults.make_config(
            max_new_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
            response_format=self.reading.grammar,
            max_thinking_tokens=body.thought_limit,
            names=self.reading.names,
        )
        prompt = self._messages
        if body.instructions is not None:
            prompt = (Message(role="system", parts=(TextPart(text=body.instructions),)), *prompt)
        request = GenerationRequest(
            prompt=prompt,
            gen_config=config,
            template_options=self.reading.template_options,
            kept_tokens=self.reading.kept_tokens,
            streams=bool(body.stream or body.background),  # what is in the background says when it has begun
            **body.request_options(),
        )
        self.request = state.fit_model(request, self.reading.names, http)
        self._speller = TokenSpeller(state.engine.tokenizer)
        self._wants_timings = wants_timings(http)
        self._id = make_id("resp_")
        self.caller = caller_of(http.scope, answer_id=self._id)
        self._created_at = int(time.time())
        self.events = ResponseEvents()
        self._finished: dict[str, Any] = {}

    async def complete(self, answer: Answer) -> dict[str, Any]:
        """Return the `ResponseObject` as JSON, and store it unless the request has `store=false`."""
        writer = OutputWriter(make_no_event, partial(make_item_id, self._id))
        parser = self.reading.open(is_thinking=answer.last.is_thinking)
        whole = replace(
            answer.last, text=answer.text, token_ids=tuple(answer.token_ids), logprobs=tuple(answer.logprobs)
        )
        for part in self._read(parser, whole):
            writer.write(part, self._spell(answer.token_ids, answer.logprobs))
        writer.finish(_find_status(answer.last))
        return await self._finish(writer.items, answer.last)

    def make_queued(self) -> StoredResponse:
        """Return the response before it is answered, for a request with background=true."""
        return StoredResponse(body=self._make_response("queued", []), messages=keep_media(self._messages, _PREVIOUS))

    async def stream_later(self, progress: Progress) -> StoredResponse:
        """Return the complete response, and tell its events."""
        queued, has_begun = self._make_response("queued", []), False
        await progress.tell(self.events.write("created", response=queued))
        await progress.tell(self.events.write("queued", response=queued))
        async with aclosing(self.stream()) as events:
            async for event in events:
                if not has_begun:
                    has_begun = True
                    await progress.begin()
                await progress.tell(event)
        return self._make_stored(self._finished)

    async def answer_later(self, progress: Progress) -> StoredResponse:
        """Return the complete response."""
        parts: list[OutputDelta] = []
        answering, names = self._state.answering, self.reading.names
        async with aclosing(answering.deltas([self.request], caller=self.caller, names=names)) as deltas:
            async for _, delta in deltas:
                if not parts:
                    await progress.begin()
                parts.append(delta)
        return self._make_stored(await self.complete(Answer.join(parts)))

    def _make_stored(self, response: Mapping[str, Any]) -> StoredResponse:
        said = _as_message(response["output"])
        return StoredResponse(body=dict(response), messages=keep_media((*self._messages, said), _PREVIOUS))

    async def _finish(self, items: list[dict[str, object]], last: OutputDelta) -> dict[str, Any]:
        tally = Tally()
        tally.add(0, last)
        status = _find_status(last)
        response = self._make_response(status, items)
        response["completed_at"] = int(time.time()) if status == "completed" else None
        response["incomplete_details"] = None if status == "completed" else {"reason": "max_output_tokens"}
        response["usage"] = {
            "input_tokens": tally.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": tally.cached_tokens,
                "cache_write_tokens": 0,
                "vision_tokens": tally.media_tokens - tally.audio_tokens,
            },
            "output_tokens": tally.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
            "total_tokens": tally.prompt_tokens + tally.completion_tokens,
        }
        if (conversation_id := self._body.conversation_id) is not None:
            turn = (*self._asked, _as_message(items))
            await extend_conversation(self._state, self._owner, conversation_id, turn)
        if self._stores and not self._body.background:
            await self._state.shared.responses.store(self._owner, self._id, self._make_stored(response))
        if self._wants_timings:
            response["seesay"] = make_details(tally)
        self._finished = response
        return response

    def _make_response(self, status: str, output: list[dict[str, object]]) -> dict[str, Any]:
        config = self.request.gen_config
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": None,
            "status": status,
            "background": bool(self._body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": self._body.instructions,
            "max_output_tokens": self._body.max_output_tokens,
            "metadata": self._body.metadata or {},
            "model": self._state.name_model(self._body.model),
            "output": output,
            "parallel_tool_calls": self._tools.is_parallel and bool(self._tools.functions),
            "previous_response_id": self._body.previous_response_id,
            "service_tier": "default",
            "store": self._stores,
            "temperature": config.temperature,
            "text": {"format": self._body.answer_format or {"type": "text"}},
            "tool_choice": self._body.tool_choice or self._tools.mode,
            "tools": [_echo_tool(tool) for tool in self._body.tools or ()],
            "top_logprobs": config.logprobs or 0,
            "top_p": config.top_p,
            "truncation": "disabled",
            "usage": None,
            **({} if self._body.conversation_id is None else {"conversation": {"id": self._body.conversation_id}}),
            **({} if self._body.user is None else {"user": self._body.user}),
        }

    def _spell(self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, float]]) -> list[dict[str, Any]]:
        return self._speller.chat_entries(token_ids, logprobs, self.request.gen_config.logprobs or 0)

    # --- streamed --------------------------------------------------------------------------------------------------

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the events that OpenAI's client expects, from `response.created` to `response.completed` or
        `.incomplete`."""
        writer = OutputWriter(self.events.write, partial(make_item_id, self._id))
        parser: AnswerParser | None = None
        answering, names = self._state.answering, self.reading.names
        async with aclosing(answering.deltas([self.request], caller=self.caller, names=names)) as deltas:
            async for _, delta in deltas:
                if parser is None:
                    parser = self.reading.open(is_thinking=delta.is_thinking)
                    response = self._make_response("in_progress", [])
                    if not self._body.background:  # there it was queued before
                        yield self.events.write("created", response=response)
                    yield self.events.write("in_progress", response=response)
                logprobs = self._spell(delta.token_ids, delta.logprobs or ())
                for part in self._read(parser, delta):
                    for event in writer.write(part, logprobs):
                        yield event
        for event in writer.finish(_find_status(delta)):
            yield event
        response = await self._finish(writer.items, delta)
        yield self.events.write(response["status"], response=response)

    def _read(self, parser: AnswerParser, delta: OutputDelta) -> list[AnswerPart]:
        """Return the parts that a delta adds. Log-probabilities come with text, even if that is empty."""
        if self.reading.is_plain:
            return [ContentText(delta.text)] if delta.text or delta.logprobs else []
        parts = parser.feed(delta.text)
        return parts if delta.finish_reason is None else [*parts, *parser.finish()]


def _echo_tool(tool: Any) -> dict[str, Any]:
    """Return a tool of the request with the fields that OpenAI's schema requires."""
    if tool["type"] == "custom":
        return {"format": {"type": "text"}, **tool}
    return {"parameters": None, "strict": None, "description": None, **tool}


def _find_status(last: OutputDelta) -> Status:
    return "completed" if last.finish_reason == "stop" else "incomplete"


def _as_message(items: Sequence[Mapping[str, Any]]) -> Message:
    """Return the output of a response as a turn of the assistant. A call that was cut off is not part of it."""
    texts: dict[str, list[str]] = {"message": [], "reasoning": []}
    calls = []
    for item in items:
        if item["type"] in texts:
            texts[item["type"]] += [part["text"] for part in item["content"]]
        elif item["status"] == "completed":
            calls.append(_as_call(item))
    extra: dict[str, Any] = {"tool_calls": calls} if calls else {}
    if texts["reasoning"]:
        extra["reasoning_content"] = "\n".join(texts["reasoning"])
    parts = tuple(TextPart(text=text) for text in texts["message"] if text or not calls)
    return Message(role="assistant", parts=parts, extra=extra)


def _as_call(item: Mapping[str, Any]) -> dict[str, Any]:
    is_custom = item["type"] == "custom_tool_call"
    arguments = write_arguments(item["input"]) if is_custom else item["arguments"]
    function = {"name": item["name"], "arguments": arguments}
    return {"id": item["call_id"], "type": "custom" if is_custom else "function", "function": function}
