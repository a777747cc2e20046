"""`/api/chat` and `/api/generate`: whole answers, and lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.serving.errors import ApiError
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.http.streaming import LineStream, encode_json
from seesay.serving.ollama.conversation import make_messages, make_prompt, place_pictures
from seesay.serving.ollama.describing import plain_name
from seesay.serving.ollama.protocol import ChatRequest, GenerateRequest, OllamaRequest
from seesay.serving.openai.tool_fields import read_chat_tools
from seesay.serving.requests.answer_reading import AnswerReading
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.content import read_messages
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.tools import Tools
from seesay.templates.parsers.answer_parser import AnswerParser
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart, ContentText, ReasoningText
from seesay.values import GenerationRequest, Message, OutputDelta

_ANSWER = {
    "description": "the answer; streamed, which is the default, lines of JSON of this form",
    "content": {kind: {"schema": {"type": "object"}} for kind in ("application/json", "application/x-ndjson")},
}


def make_router(state: ServerState) -> APIRouter:
    """Return the routes. Errors under `/api` have Ollama's form."""
    state.envelopes.register("/api", make_envelope)
    router = make_api_router("Ollama")

    @router.post("/api/chat", response_model=None, responses={200: _ANSWER})
    async def chat(body: ChatRequest, http: Request) -> Response:
        """Answer a conversation, pictures included."""
        return await _answer(await off_loop(http, ChatReply, state, body, http), http, is_empty=not body.messages)

    @router.post("/api/generate", response_model=None, responses={200: _ANSWER})
    async def generate(body: GenerateRequest, http: Request) -> Response:
        """Answer one prompt, pictures included."""
        is_empty = not (body.prompt or body.images)
        return await _answer(await off_loop(http, GenerateReply, state, body, http), http, is_empty=is_empty)

    return router


def make_envelope(error: ApiError) -> dict[str, Any]:
    """Return Ollama's body of an error."""
    return {"error": error.message}


async def _answer(reply: _Reply, http: Request, *, is_empty: bool) -> Response:
    if is_empty:  # clients load a model so
        return JSONResponse(reply.make_line("", {}, done_reason="load"))
    names = reply.reading.names
    await reply.state.try_grammar(reply.request, names, http, left_out=reply.reading.left_out)
    if reply.is_streamed:
        return LineStream(reply.stream(), render_error=lambda error: _encode(make_envelope(error)))
    answers = await reply.state.answering.collect(
        [reply.request], receive=http.receive, caller=caller_of(http.scope), names=names
    )
    return JSONResponse(reply.make_whole(answers[0].text, answers[0].last))


class _Reply:
    """The answer to one request, complete or streamed."""

    def __init__(self, state: ServerState, body: OllamaRequest, http: Request, tools: Tools) -> None:
        """Read the body. Raises `ApiError` if it cannot be answered. Nothing is computed yet."""
        state.check_model(plain_name(state, body.model))
        self.state = state
        self.is_streamed = body.stream is not False
        self.reading = AnswerReading.choose(state.engine, tools, body.answer_format, body.field_names("messages"))
        options = {"max_new_tokens": None} if body.options is None else body.options.sampling()
        config = state.defaults.make_config(**options, response_format=self.reading.grammar, names=self.reading.names)
        request = GenerationRequest(
            prompt=self._read_prompt(),
            gen_config=config,
            template_options=self.reading.template_options,
            kept_tokens=self.reading.kept_tokens,
            streams=self.is_streamed,
            **{**body.request_options(), "adapter_name": plain_name(state, body.model)},
        )
        self.request = state.fit_model(request, self.reading.names, http)
        self._model = body.model
        self._caller = caller_of(http.scope)

    def _read_prompt(self) -> tuple[Message, ...] | str:
        raise NotImplementedError

    def _make_said(self, parts: Sequence[AnswerPart]) -> list[dict[str, Any]]:
        """Return the fields of the lines that say these parts of the answer."""
        raise NotImplementedError

    def make_whole(self, text: str, last: OutputDelta) -> dict[str, Any]:
        """Return the whole answer."""
        parser = self.reading.open(is_thinking=last.is_thinking)
        joined: dict[str, Any] = {}
        for said in self._make_said([*parser.feed(text), *parser.finish()]):
            for key, value in said.items():
                joined[key] = joined[key] + value if key in joined else value
        return self.make_line(joined.pop("content", ""), joined, last=last)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the lines: pieces of the answer, then one with the counts."""
        parser: AnswerParser | None = None
        answering, names = self.state.answering, self.reading.names
        async with aclosing(answering.deltas([self.request], caller=self._caller, names=names)) as deltas:
            async for _, delta in deltas:
                if parser is None:
                    parser = self.reading.open(is_thinking=delta.is_thinking)
                parts = parser.feed(delta.text)
                if delta.finish_reason is not None:
                    parts += parser.finish()
                for said in self._make_said(parts):
                    yield _encode(self.make_line(said.pop("content", ""), said))
        yield _encode(self.make_line("", {}, last=delta))

    def make_line(
        self, content: str, more: dict[str, Any], *, last: OutputDelta | None = None, done_reason: str | None = None
    ) -> dict[str, Any]:
        """Return a line with a text and the fields `more`; with `last` or `done_reason` it is the last one."""
        created = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        head = {"model": self._model, "created_at": created, **self._place(content, more)}
        if last is None:
            done = {} if done_reason is None else {"done_reason": done_reason}
            return {**head, "done": done_reason is not None, **done}
        return {**head, "done": True, "done_reason": last.finish_reason, **_count(last)}

    def _place(self, content: str, more: dict[str, Any]) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": content, **more}}


class ChatReply(_Reply):
    """The answer to `/api/chat`."""

    def __init__(self, state: ServerState, body: ChatRequest, http: Request) -> None:
        self._body = body
        self._name, self._pieces = "", list[str]()
        super().__init__(state, body, http, read_chat_tools(body.tools, None, None))

    def _read_prompt(self) -> tuple[Message, ...] | str:
        messages = make_messages(self._body.messages)
        if not messages:
            return ""
        fields = [f"messages[{index}].images" for index in range(len(messages))]
        return place_pictures(read_messages(messages, self.state.settings.media), fields)

    def _make_said(self, parts: Sequence[AnswerPart]) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case ContentText():
                    said.append({"content": part.text})
                case ReasoningText():
                    said.append({"thinking": part.text})
                case CallStart():
                    self._name, self._pieces = part.name, []
                case CallArguments():
                    self._pieces.append(part.text)
                case CallEnd():
                    function = {"name": self._name, "arguments": json.loads("".join(self._pieces) or "{}")}
                    said.append({"tool_calls": [{"function": function}]})
        return said


class GenerateReply(_Reply):
    """The answer to `/api/generate`."""

    def __init__(self, state: ServerState, body: GenerateRequest, http: Request) -> None:
        body.check_raw()
        self._body = body
        super().__init__(state, body, http, Tools())

    def _read_prompt(self) -> tuple[Message, ...] | str:
        if self._body.raw:
            return self._body.prompt
        messages = read_messages(make_prompt(self._body), self.state.settings.media)
        return place_pictures(messages, ["images"] * len(messages))

    def _make_said(self, parts: Sequence[AnswerPart]) -> list[dict[str, Any]]:
        return [
            {"thinking" if isinstance(part, ReasoningText) else "content": part.text}
            for part in parts
            if isinstance(part, ContentText | ReasoningText)
        ]

    def _place(self, content: str, more: dict[str, Any]) -> dict[str, Any]:
        return {"response": content, **more}


def _count(last: OutputDelta) -> dict[str, int]:
    """Return Ollama's counts; times are in nanoseconds."""
    usage, timings = last.usage, last.timings
    counts = {} if usage is None else {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens}
    if timings is None:
        return counts
    times = {
        "total_duration": timings.total_s,
        "load_duration": 0.0,
        "prompt_eval_duration": timings.prefill_s,
        "eval_duration": timings.decode_s,
    }
    return {**counts, **{name: round(value * 1e9) for name, value in times.items()}}


def _encode(line: dict[str, Any]) -> bytes:
    return encode_json(line).encode() + b"\n"
