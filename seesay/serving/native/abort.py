"""`/abort_request`: ends the caller's requests by the id of their answers, under SGLang's name."""

from __future__ import annotations

from typing import Any, ClassVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from seesay.serving.errors import bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.requests.request_model import RequestModel
from seesay.serving.requests.state import ServerState
from seesay.serving.traffic.auth import turn_of


class AbortRequest(RequestModel):
    """`POST /abort_request`."""

    rules: ClassVar[tuple[dict[str, Any], ...]] = (
        {"anyOf": [{"properties": {"rid": {"type": "string"}}, "required": ["rid"]},
                   {"properties": {"abort_all": {"const": True}}, "required": ["abort_all"]}]},
    )  # fmt: skip

    rid: str | None = Field(None, description="`rid` or `request_id` of the request, or the header `x-request-id`")
    abort_all: bool = Field(False, description="end all requests of the caller")


class Aborted(BaseModel):
    """The number of requests that were ended."""

    num_aborted: int


def make_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = make_api_router("native")

    @router.post("/abort_request", response_model=Aborted)
    async def abort_request(body: AbortRequest, http: Request) -> Response:
        """End requests of the same caller. Unknown ids are ignored."""
        if body.rid is None and not body.abort_all:
            raise bad_request("rid: give the id of a request, or abort_all", "rid")
        rid = None if body.abort_all else body.rid
        return JSONResponse({"num_aborted": await state.shared.abort(turn_of(http.scope), rid)})

    return router
