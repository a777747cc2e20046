"""`/v1/responses/{id}`: stored responses, which are looked at, cancelled and deleted by their owners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.http.query import refuse_unknown
from seesay.serving.openai.background import RUNNING, BackgroundAnswers
from seesay.serving.openai.responses_protocol import DeletedResponse, ItemList, ResponseObject
from seesay.serving.requests.state import ServerState
from seesay.serving.stored.response_store import StoredResponse
from seesay.serving.traffic.auth import owner_of
from seesay.values import MediaPart, Message, Modality

_ID = "response_id"


def make_router(state: ServerState, background: BackgroundAnswers) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")

    @router.get("/v1/responses/{response_id}", response_model=ResponseObject)
    async def retrieve_response(response_id: str, http: Request) -> Response:
        """Return a stored response."""
        return JSONResponse((await find_stored(state, http, response_id, _ID, status=404)).body)

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(response_id: str, http: Request) -> DeletedResponse:
        """Delete a stored response. One that is being answered in the background is ended."""
        await find_stored(state, http, response_id, _ID, status=404)
        await state.shared.delete_response(owner_of(http.scope), response_id)
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
    async def list_input_items(
        response_id: str,
        http: Request,
        limit: int = Query(20, ge=1, le=100),
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """List the items of the conversation that a stored response answers, in parts of at most `limit`."""
        await refuse_unknown(http, "limit", "order", "after", "include", "include[]", lists=("include", "include[]"))
        stored = await find_stored(state, http, response_id, _ID, status=404)
        is_answered = stored.body["status"] in ("completed", "incomplete")
        messages = stored.messages[:-1] if is_answered else stored.messages
        return JSONResponse(list_page(make_items(messages, response_id), limit, order, after))

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
    stored = await state.shared.find_response(owner_of(http.scope), response_id)
    if stored is None or stored.body["object"] != kind:
        raise ApiError(
            status, f"{param}: {response_id[:60]!r} is not stored, or no longer", param=param, code="not_found"
        )
    return stored


def list_page(
    items: Sequence[Mapping[str, Any]], limit: int, order: Literal["asc", "desc"], after: str | None
) -> dict[str, Any]:
    """Return a part of a list: at most `limit` items behind the one of the id `after`. Raises `ApiError` 400 for an
    unknown id."""
    found = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        place = next((index for index, item in enumerate(found) if item["id"] == after), None)
        if place is None:
            raise bad_request(f"after: there is no item {after[:60]!r}", "after")
        found = found[place + 1 :]
    page = found[:limit]
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {
        "object": "list", "data": page, "first_id": ends[0], "last_id": ends[1], "has_more": len(found) > limit
    }  # fmt: skip


def make_items(messages: Sequence[Message], response_id: str) -> list[dict[str, Any]]:
    """Return a conversation as items of the Responses API. Their ids are the same at each call."""
    written = [item for message in messages for item in _write_items(message)]
    suffix = response_id.partition("_")[2]
    return [{"id": f"item_{suffix}_{number}", **item} for number, item in enumerate(written)]


def _write_items(message: Message) -> Iterator[dict[str, Any]]:
    texts = [part for part in message.parts if not isinstance(part, MediaPart)]
    if message.role == "tool":
        output = "".join(part.text for part in texts)
        call_id = message.extra.get("tool_call_id", "")
        yield {"type": "function_call_output", "call_id": call_id, "output": output, "status": "completed"}
        return
    if message.role == "assistant":
        content = [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []} for part in texts]
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
    kind = "image" if part.modality is Modality.IMAGE else "video"
    return {"type": f"input_{kind}", f"{kind}_url": str(part.source), **({"detail": "auto"} if kind == "image" else {})}
