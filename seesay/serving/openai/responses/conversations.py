"""`/v1/conversations`: conversations that responses continue and extend, stored beside the responses."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field, SkipValidation
from starlette.responses import JSONResponse, Response

from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.http.query import refuse_unknown
from seesay.serving.openai.answer_models import AnswerModel
from seesay.serving.openai.responses.item_pages import AskedPage, make_list
from seesay.serving.openai.responses.response_inputs import AnyInput
from seesay.serving.openai.responses.response_items import read_input
from seesay.serving.openai.responses.responses_protocol import ItemList, StoredItem
from seesay.serving.openai.responses.stored_responses import find_stored, make_items, remove_item
from seesay.serving.openai.wire import make_id
from seesay.serving.requests.content import keep_media
from seesay.serving.requests.fields import Metadata
from seesay.serving.requests.request_model import RequestModel
from seesay.serving.requests.state import ServerState
from seesay.serving.stored.response_store import StoredResponse
from seesay.serving.traffic.auth import owner_of
from seesay.values import Message

_ID = "conversation_id"
_MAX_ITEMS = 20
Items = SkipValidation[Annotated[list[AnyInput], Field(max_length=_MAX_ITEMS)]]


class ConversationRequest(RequestModel):
    """`POST /v1/conversations`."""

    items: Items | None = Field(None, description="the first items, as in the `input` of /v1/responses")
    metadata: Metadata | None = None


class MetadataRequest(RequestModel):
    """`POST /v1/conversations/{conversation_id}`."""

    metadata: Metadata


class NewItems(RequestModel):
    """`POST /v1/conversations/{conversation_id}/items`."""

    items: Items


class Conversation(AnswerModel):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(AnswerModel):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")

    async def find(http: Request, conversation_id: str) -> StoredResponse:
        return await find_stored(state, http, conversation_id, _ID, status=404, kind="conversation")

    async def store(http: Request, stored: StoredResponse) -> Response:
        await state.shared.responses.store(owner_of(http.scope), stored.body["id"], stored)
        return JSONResponse(stored.body)

    @router.post("/v1/conversations", response_model=Conversation)
    async def create_conversation(body: ConversationRequest, http: Request) -> Response:
        """Begin a conversation, which responses with its id continue."""
        if not state.settings.max_stored_responses:
            raise bad_request("conversations are not stored: this server has max_stored_responses=0")
        metadata = body.metadata or {}
        made = {"id": make_id("conv_"), "object": "conversation", "created_at": int(time.time()), "metadata": metadata}
        return await store(http, StoredResponse(body=made, messages=_read(state, body.items, ())))

    @router.get("/v1/conversations/{conversation_id}", response_model=Conversation)
    async def retrieve_conversation(conversation_id: str, http: Request) -> Response:
        """Return a conversation, without its items."""
        return JSONResponse((await find(http, conversation_id)).body)

    @router.post("/v1/conversations/{conversation_id}", response_model=Conversation)
    async def update_conversation(conversation_id: str, body: MetadataRequest, http: Request) -> Response:
        """Replace the metadata of a conversation."""
        stored = await find(http, conversation_id)
        return await store(http, replace(stored, body={**stored.body, "metadata": body.metadata}))

    @router.delete("/v1/conversations/{conversation_id}")
    async def delete_conversation(conversation_id: str, http: Request) -> DeletedConversation:
        """Delete a conversation. Responses that were part of it stay."""
        await find(http, conversation_id)
        await state.shared.responses.delete(owner_of(http.scope), conversation_id)
        return DeletedConversation(id=conversation_id)

    @router.get("/v1/conversations/{conversation_id}/items", response_model=ItemList)
    async def list_items(conversation_id: str, page: AskedPage, http: Request) -> Response:
        """List the items of a conversation, in parts of at most `limit`."""
        return JSONResponse(page.cut(_items_of(await find(http, conversation_id))))

    @router.post("/v1/conversations/{conversation_id}/items", response_model=ItemList)
    async def add_items(conversation_id: str, body: NewItems, http: Request) -> Response:
        """Add items to the end of a conversation, and return them."""
        stored = await find(http, conversation_id)
        whole = replace(stored, messages=(*stored.messages, *_read(state, body.items, stored.messages)))
        await store(http, whole)
        return JSONResponse(make_list(_items_of(whole)[len(_items_of(stored)) :]))

    @router.get("/v1/conversations/{conversation_id}/items/{item_id}", response_model=StoredItem)
    async def retrieve_item(conversation_id: str, item_id: str, http: Request) -> Response:
        """Return an item of a conversation."""
        await refuse_unknown(http, "include", "include[]", lists=("include", "include[]"))
        stored = await find(http, conversation_id)
        return JSONResponse(_items_of(stored)[_find_item(stored, item_id)])

    @router.delete("/v1/conversations/{conversation_id}/items/{item_id}", response_model=Conversation)
    async def delete_item(conversation_id: str, item_id: str, http: Request) -> Response:
        """Delete an item of a conversation, and return the conversation. The ids of the others stay."""
        stored = await find(http, conversation_id)
        index = _find_item(stored, item_id)
        number = int(item_id.rpartition("_")[2])
        messages = remove_item(stored.messages, index)
        return await store(http, replace(stored, messages=messages, deleted_items=(*stored.deleted_items, number)))

    return router


def _items_of(stored: StoredResponse) -> list[dict[str, Any]]:
    return make_items(stored.messages, stored.body["id"], stored.deleted_items)


def _find_item(stored: StoredResponse, item_id: str) -> int:
    """Return the index of an item. Raises `ApiError` 404."""
    for index, item in enumerate(_items_of(stored)):
        if item["id"] == item_id:
            return index
    message = f"item_id: {item_id[:60]!r} is not an item of this conversation, or no longer"
    raise ApiError(404, message, param="item_id", code="not_found")


async def extend_conversation(
    state: ServerState, owner: bytes, conversation_id: str, turn: tuple[Message, ...]
) -> None:
    """Add the messages of a turn to a conversation, if it is still stored."""
    stored = await state.shared.responses.find(owner, conversation_id)
    if stored is not None:
        whole = replace(stored, messages=(*stored.messages, *keep_media(turn, "conversation")))
        await state.shared.responses.store(owner, conversation_id, whole)


def _read(state: ServerState, items: Any, earlier: tuple[Message, ...]) -> tuple[Message, ...]:
    if not items:
        return ()
    return keep_media(read_input(items, earlier, state.settings.media, param="items"), "conversation")
