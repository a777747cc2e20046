"""References in the `input` of a response to items that earlier responses have made and the server stores."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from seesay.errors import show
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.openai.responses.responses_protocol import ResponseRequest
from seesay.serving.openai.responses.stored_responses import find_stored
from seesay.serving.requests.state import ServerState

_NUM_DIGITS = 4


def make_item_id(response_id: str, prefix: str, index: int) -> str:
    """Return the id of an item in the output of a response, from which the response is found."""
    return f"{prefix}{response_id.partition('_')[2]}{index:0{_NUM_DIGITS}x}"


async def resolve_references(state: ServerState, http: Request, body: ResponseRequest) -> ResponseRequest:
    """Return a request with the items that its references name. Raises `ApiError` 400 for one that is not stored."""
    if not isinstance(body.input, list):
        return body
    items: list[Any] = list(body.input)
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "item_reference":
            items[index] = await _find_item(state, http, item, f"input[{index}]")
    return body.model_copy(update={"input": items})


async def _find_item(state: ServerState, http: Request, item: dict[str, Any], where: str) -> dict[str, Any]:
    if unknown := sorted(set(item) - {"type", "id"}):
        raise bad_request(f"{where} has the unknown field {unknown[0][:60]!r}", f"{where}.{unknown[0][:60]}")
    item_id, name = item.get("id"), f"{where}.id"
    if not isinstance(item_id, str):
        raise bad_request(f"{name} must be the id of an item, got {show(item_id)}", name)
    response_id = "resp_" + item_id.partition("_")[2][:-_NUM_DIGITS]
    try:
        stored = await find_stored(state, http, response_id, name, status=400)
        return next(found for found in stored.body["output"] if found["id"] == item_id)
    except (ApiError, StopIteration):
        why = f"{name}: {show(item_id)} is not an item of a stored response, or no longer; send the item itself"
        raise bad_request(why, name) from None
