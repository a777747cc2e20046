"""`/v1/responses`: OpenAI's Responses API. Conversations can be continued by the id of a response."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.errors import show
from seesay.serving.answers import Answer, Tally
from seesay.serving.auth import owner_of
from seesay.serving.bodies import make_api_router, off_loop
from seesay.serving.caller import caller_of
from seesay.serving.content import check_media, keep_media
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.openai.logprobs import TokenSpeller
from seesay.serving.openai.response_store import StoredResponse
from seesay.serving.openai.responses_protocol import DeletedResponse, ResponseObject, ResponseRequest
from seesay.serving.openai.wire import make_details, make_id, wants_timings
from seesay.serving.state import ServerState
from seesay.serving.streaming import EventStream, describe_events, make_event
from seesay.values import GenerationRequest, MediaPart, MediaPlace, Message, Modality, OutputDelta, TextPart
from seesay.vl.constants import DETAILS

_PARAM_NAMES = {"max_new_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
_PREVIOUS = "previous_response_id"
_ITEM_KEYS = frozenset({"type", "role", "content", "id", "status", "phase"})
_ROLES = ("system", "developer", "user", "assistant")
_TEXT_KEYS = frozenset({"type", "text"})
_PART_KEYS = {
    "input_text": _TEXT_KEYS,
    "input_image": frozenset({"type", "image_url", "detail", "file_id"}),
    "output_text": _TEXT_KEYS | {"annotations", "logprobs"},
    "text": _TEXT_KEYS,
}


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")

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
        state.check_model(body.model)
        earlier: tuple[Message, ...] = ()
        if body.previous_response_id is not None:
            earlier = (await _find(state, http, body.previous_response_id, _PREVIOUS, status=400)).messages
        reply = await off_loop(http, ResponseReply, state, earlier, body, http)
        if body.stream:
            return EventStream(reply.stream(), render_error=reply.make_error_event)
        answers = await state.answering.collect(
            [reply.request], receive=http.receive, caller=caller_of(http.scope), fields=("input",)
        )
        return JSONResponse(await reply.complete(answers[0]))

    @router.get("/v1/responses/{response_id}", response_model=ResponseObject)
    async def retrieve_response(response_id: str, http: Request) -> Response:
        """Return a stored response."""
        return JSONResponse((await _find(state, http, response_id, "response_id", status=404)).body)

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(response_id: str, http: Request) -> DeletedResponse:
        """Delete a stored response."""
        await _find(state, http, response_id, "response_id", status=404)
        await state.home.delete_response(owner_of(http.scope), response_id)
        return DeletedResponse(id=response_id)

    return router


async def _find(state: ServerState, http: Request, response_id: str, param: str, *, status: int) -> StoredResponse:
    stored = await state.home.find_response(owner_of(http.scope), response_id)
    if stored is None:
        raise ApiError(
            status, f"{param}: {response_id[:60]!r} is not stored, or no longer", param=param, code="not_found"
        )
    return stored


def read_input(body: ResponseRequest, state: ServerState) -> tuple[Message, ...]:
    """Turn `input` into messages. Raises `ApiError` 400 that names the item at fault."""
    if isinstance(body.input, str):
        return (Message(role="user", parts=(TextPart(text=body.input),)),)
    if not isinstance(body.input, list):
        raise bad_request("input must be a string or a list of items", "input")
    if not body.input:
        raise bad_request("input must be a list with at least one item", "input")
    limits = state.settings.media
    messages = tuple(_read_item(item, f"input[{index}]") for index, item in enumerate(body.input))
    check_media(
        (part for message in messages for part in message.parts if isinstance(part, MediaPart)), limits, "input"
    )
    return messages


def _read_item(item: object, where: str) -> Message:
    if not isinstance(item, dict):
        raise bad_request(f"{where} must be an object with role and content", where)
    kind = item.get("type", "message")
    if kind != "message":
        raise bad_request(f"{where}.type must be 'message', got {show(kind)}", f"{where}.type")
    if unknown := sorted(set(item) - _ITEM_KEYS):
        raise bad_request(f"{where} has the unknown field {unknown[0][:60]!r}", f"{where}.{unknown[0][:60]}")
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise bad_request(f"{where}.role must be one of {', '.join(_ROLES)}, got {show(role)}", f"{where}.role")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise bad_request(f"{where}.content must be a string or a list of parts", f"{where}.content")
    parts = tuple(_read_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    return Message(role="system" if role == "developer" else role, parts=parts)


def _read_part(part: object, where: str) -> TextPart | MediaPart:
    if not isinstance(part, dict):
        raise bad_request(f"{where} must be an object with a type", where)
    kind = part.get("type")
    known = _PART_KEYS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise bad_request(f"{where}.type must be one of {', '.join(_PART_KEYS)}; got {show(kind)}", f"{where}.type")
    if unknown := sorted(set(part) - known):
        raise bad_request(f"{where} has the unknown field {unknown[0][:60]!r}", f"{where}.{unknown[0][:60]}")
    if kind == "input_image":
        return _read_image(part, where)
    if not isinstance(part.get("text"), str):
        raise bad_request(f"{where}.text must be a string", f"{where}.text")
    return TextPart(text=part["text"])


def _read_image(part: dict[str, Any], where: str) -> MediaPart:
    if part.get("file_id") is not None or not isinstance(part.get("image_url"), str):
        raise bad_request(f"{where}.image_url must be a URL; file_id is not supported", f"{where}.image_url")
    detail = part.get("detail")
    if detail is not None and detail not in DETAILS:
        raise bad_request(f"{where}.detail must be {', '.join(DETAILS)}, got {show(detail)}", f"{where}.detail")
    return MediaPart(
        modality=Modality.IMAGE,
        source=part["image_url"],
        options={"detail": "low"} if detail == "low" else {},
        place=MediaPlace(source=f"{where}.image_url", parent=where, keys={"detail": "detail"}),
    )


class ResponseReply:
    """The answer to one request, complete or streamed."""

    def __init__(self, state: ServerState, earlier: tuple[Message, ...], body: ResponseRequest, http: Request) -> None:
        """Read the body, which continues the messages `earlier`. Raises `ApiError` if it cannot be answered. Nothing is
        computed yet."""
        self._state = state
        self._owner = owner_of(http.scope)
        self._body = body
        self._stores = body.store is not False and state.settings.max_stored_responses > 0
        self._messages = (*earlier, *read_input(body, state))
        config = state.defaults.make_config(
            max_new_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
            param_names=_PARAM_NAMES,
        )
        prompt = self._messages
        if body.instructions is not None:
            prompt = (Message(role="system", parts=(TextPart(text=body.instructions),)), *prompt)
        self.request = GenerationRequest(prompt=prompt, gen_config=config, streams=bool(body.stream))
        self._speller = TokenSpeller(state.engine.tokenizer)
        self._wants_timings = wants_timings(http)
        self._caller = caller_of(http.scope)
        self._id = make_id("resp_")
        self._item_id = make_id("msg_")
        self._created_at = int(time.time())
        self._num_events = 0

    async def complete(self, answer: Answer) -> dict[str, Any]:
        """Return the `ResponseObject` as JSON, and store it unless the request has `store=false`."""
        tally = Tally()
        tally.add(0, answer.last)
        is_complete = answer.finish_reason == "stop"
        part = self._make_part(answer.text, answer.token_ids, answer.logprobs)
        status = "completed" if is_complete else "incomplete"
        response = self._make_response(status, [self._make_item(status, [part])])
        response["completed_at"] = int(time.time()) if is_complete else None
        response["incomplete_details"] = None if is_complete else {"reason": "max_output_tokens"}
        response["usage"] = {
            "input_tokens": tally.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": tally.cached_tokens,
                "cache_write_tokens": 0,
                "vision_tokens": tally.media_tokens,
            },
            "output_tokens": tally.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tally.prompt_tokens + tally.completion_tokens,
        }
        if self._stores:
            said = Message(role="assistant", parts=(TextPart(text=answer.text),))
            stored = StoredResponse(body=dict(response), messages=keep_media((*self._messages, said), _PREVIOUS))
            await self._state.home.store_response(self._owner, self._id, stored)
        if self._wants_timings:
            response["seesay"] = make_details(tally)
        return response

    def _make_response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        config = self.request.gen_config
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": self._body.instructions,
            "max_output_tokens": self._body.max_output_tokens,
            "metadata": self._body.metadata or {},
            "model": self._state.model_name,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": self._body.previous_response_id,
            "service_tier": "default",
            "store": self._stores,
            "temperature": config.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_logprobs": config.logprobs or 0,
            "top_p": config.top_p,
            "truncation": "disabled",
            "usage": None,
            **({} if self._body.user is None else {"user": self._body.user}),
        }

    def _make_item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "message", "id": self._item_id, "status": status, "role": "assistant", "content": content}

    def _make_part(self, text: str, token_ids: list[int], logprobs: list[dict[int, float]]) -> dict[str, Any]:
        entries = self._speller.chat_entries(token_ids, logprobs, self.request.gen_config.logprobs or 0)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": entries}

    # --- streamed --------------------------------------------------------------------------------------------------

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the events that OpenAI's client expects, from `response.created` to `response.completed` or
        `.incomplete`."""
        deltas_so_far: list[OutputDelta] = []
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        answering = self._state.answering
        async with aclosing(answering.deltas([self.request], caller=self._caller, fields=("input",))) as deltas:
            async for _, delta in deltas:
                if not deltas_so_far:
                    for event in self._begin(place):
                        yield event
                deltas_so_far.append(delta)
                if delta.text or delta.logprobs:
                    part = self._make_part("", list(delta.token_ids), [dict(entry) for entry in delta.logprobs or ()])
                    yield self._event("output_text.delta", **place, delta=delta.text, logprobs=part["logprobs"])
        response = await self.complete(Answer.join(deltas_so_far))
        item = response["output"][0]
        part = item["content"][0]
        yield self._event("output_text.done", **place, text=part["text"], logprobs=part["logprobs"])
        yield self._event("content_part.done", **place, part=part)
        yield self._event("output_item.done", output_index=0, item=item)
        yield self._event(response["status"], response=response)

    def _begin(self, place: dict[str, Any]) -> list[bytes]:
        response = self._make_response("in_progress", [])
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [
            self._event("created", response=response),
            self._event("in_progress", response=response),
            self._event("output_item.added", output_index=0, item=self._make_item("in_progress", [])),
            self._event("content_part.added", **place, part=part),
        ]

    def make_error_event(self, error: ApiError) -> bytes:
        """Return the event that ends a failed response."""
        data = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return make_event({**data, "sequence_number": self._take_number()}, name="error")

    def _event(self, kind: str, **data: Any) -> bytes:
        name = f"response.{kind}"
        return make_event({"type": name, "sequence_number": self._take_number(), **data}, name=name)

    def _take_number(self) -> int:
        self._num_events += 1
        return self._num_events - 1
