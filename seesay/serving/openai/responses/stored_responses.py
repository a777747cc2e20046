"""`/v1/responses/{id}`: stored responses, which are looked at, cancelled and deleted by their owners."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.http.query import refuse_unknown
from seesay.serving.http.streaming import EventStream, describe_events
from seesay.serving.openai.responses.background import RUNNING, BackgroundAnswers
from seesay.serving.openai.responses.item_pages import AskedPage
from seesay.serving.openai.responses.responses_protocol import DeletedResponse, ItemList, ResponseObject
from seesay.serving.openai.wire import make_error_event
from seesay.serving.requests.custom_tools import read_text
from seesay.serving.requests.document_fields import PAGE_FIELDS
from seesay.serving.requests.state import ServerState
from seesay.serving.stored.response_store import StoredResponse
from seesay.serving.traffic.auth import owner_of
from seesay.values import MediaPart, Message, Modality

_ID = "response_id"
_STREAMS = "the response; with stream=true, events of `ResponseEvent` behind number starting_after"


def make_router(state: ServerState, background: BackgroundAnswers) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")

    @router.get(
        "/v1/responses/{response_id}",
        response_model=ResponseObject,
        responses={200: {"description": _STREAMS, "content": describe_events("ResponseEvent")}},
    )
    async def retrieve_response(
        response_id: str, http: Request, stream: bool = False, starting_after: int | None = Query(None, ge=0)
    ) -> Response:
        """Return a stored response, or the events of one that was created with background=true and stream=true, also
        while it is being answered."""
        more = ("include", "include[]", "include_obfuscation")
        await refuse_unknown(http, "stream", "starting_after", *more, lists=more)
        stored = await find_stored(state, http, response_id, _ID, status=404)
        if not stream:
            if starting_after is not None:
                raise bad_request("starting_after requires stream=true", "starting_after")
            return JSONResponse(stored.body)
        owner = owner_of(http.scope)
        found = await state.shared.responses.read_events(owner, response_id, 0)
        if found is None or not found.events:
            raise bad_request("stream: this response was not created with background=true and stream=true", "stream")
        start = 0 if starting_after is None else starting_after + 1
        return EventStream(background.follow(owner, response_id, start), render_error=make_error_event)

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(response_id: str, http: Request) -> DeletedResponse:
        """Delete a stored response. One that is being answered in the background is ended."""
        await find_stored(state, http, response_id, _ID, status=404)
        await state.shared.responses.delete(owner_of(http.scope), response_id)
        return DeletedResponse(id=response_id)

    @router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
    async def cancel_response(response_id: str, http: Request) -> Response:
        """Cancel a response that is being answered in the background. One that is there stays as it is."""
        await refuse_unknown(http)
        stored = await find_stored(state, http, response_id, _ID, status=404)
        if not stored.body["background"]:
            raise bad_request(f"{_ID}: only responses with background=true can be cancelled", _ID)
        if stored.body["status"] in RUNNING:
            stored = await background.cancel(owner_of(http.scope), stored)
        return JSONResponse(stored.body)

    @router.get("/v1/responses/{response_id}/input_items", response_model=ItemList)
    async def list_input_items(response_id: str, page: AskedPage, http: Request) -> Response:
        """List the items of the conversation that a stored response answers, in parts of at most `limit`."""
        stored = await find_stored(state, http, response_id, _ID, status=404)
        is_answered = stored.body["status"] in ("completed", "incomplete")
        messages = stored.messages[:-1] if is_answered else stored.messages
        return JSONResponse(page.cut(make_items(messages, response_id)))

    return router


async def find_stored(
    state: ServerState,
    http: Request,
    response_id: str,
    param: str,
    *,
    status: int,
    kind: Literal["response", "conversation"] = "response",
) -> StoredResponse:
    """Return a stored response or conversation of the caller. Raises `ApiError` of this status that names `param`."""
    stored = await state.shared.responses.find(owner_of(http.scope), response_id)
    if stored is None or stored.body["object"] != kind:
        raise ApiError(
            status, f"{param}: {response_id[:60]!r} is not stored, or no longer", param=param, code="not_found"
        )
    return stored


def make_items(messages: Sequence[Message], response_id: str, deleted: Container[int] = ()) -> list[dict[str, Any]]:
    """Return a conversation as items of the Responses API. Their ids are the same at each call. deleted: the numbers of
    the items that it has no more."""
    written = [item for message in messages for item in _write_items(message)]
    suffix = response_id.partition("_")[2]
    numbers = (number for number in itertools.count() if number not in deleted)
    custom_ids = _find_custom_ids(messages)
    items = (_as_custom(item) if item.get("call_id") in custom_ids else item for item in written)
    return [{"id": f"item_{suffix}_{number}", **item} for number, item in zip(numbers, items)]


def _find_custom_ids(messages: Sequence[Message]) -> set[object]:
    calls = [call for message in messages for call in message.extra.get("tool_calls", ())]
    return {call.get("id") for call in calls if call.get("type") == "custom"}


def _as_custom(item: dict[str, Any]) -> dict[str, Any]:
    """Return a call, or the result of one, as of a custom tool."""
    if item["type"] == "function_call_output":
        return {**item, "type": "custom_tool_call_output"}
    said = {key: value for key, value in item.items() if key != "arguments"}
    return {**said, "type": "custom_tool_call", "input": read_text(item["arguments"])}


def remove_item(messages: Sequence[Message], index: int) -> tuple[Message, ...]:
    """Return a conversation without one of its items."""
    kept = list(messages)
    for place, message in enumerate(kept):
        written = list(_write_items(message))
        if index < len(written):
            kept[place : place + 1] = _without(message, written[index])
            break
        index -= len(written)
    return tuple(kept)


def _without(message: Message, item: Mapping[str, Any]) -> list[Message]:
    """Return what is left of a message, which may be nothing, without an item of `_write_items`."""
    calls = list(message.extra.get("tool_calls", ()))
    if item["type"] == "message":
        message = replace(message, parts=())
    else:
        calls = [call for call in calls if call.get("id", "") != item["call_id"]]
    if item["type"] == "function_call_output" or not (message.parts or calls):
        return []
    extra = {key: value for key, value in message.extra.items() if key != "tool_calls"}
    return [replace(message, extra={**extra, "tool_calls": calls} if calls else extra)]


def _write_items(message: Message) -> Iterator[dict[str, Any]]:
    texts = [part.text for part in message.parts if not isinstance(part, MediaPart)]
    if message.role == "tool":
        call_id = message.extra.get("tool_call_id", "")
        yield {"type": "function_call_output", "call_id": call_id, "output": "".join(texts), "status": "completed"}
        return
    if message.role == "assistant":
        content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts]
    else:
        content = [_write_part(part) for part in message.parts]
    if content:
        yield {"type": "message", "role": message.role, "status": "completed", "content": content}
    for call in message.extra.get("tool_calls", ()):
        function = {name: call["function"].get(name, "") for name in ("name", "arguments")}
        yield {"type": "function_call", "call_id": call.get("id", ""), "status": "completed", **function}


def _write_part(part: Any) -> dict[str, Any]:
    if not isinstance(part, MediaPart):
        return {"type": "input_text", "text": part.text}
    if part.modality is Modality.DOCUMENT:
        name = "file_data" if str(part.source)[:5].lower() == "data:" else "file_url"
        return {"type": "input_file", name: str(part.source), **_write_options(part)}
    if part.modality is Modality.AUDIO:  # it came as `input_audio`
        head, _, data = str(part.source).partition(",")
        return {
            "type": "input_audio",
            "input_audio": {"data": data, "format": head[len("data:audio/") :].split(";")[0]},
        }
    kind = "image" if part.modality is Modality.IMAGE else "video"
    return {"type": f"input_{kind}", f"{kind}_url": str(part.source), **({"detail": "auto"} if kind == "image" else {})}


def _write_options(part: MediaPart) -> dict[str, Any]:
    return {name: part.options[name] for name in ("filename", *PAGE_FIELDS) if name in part.options}
