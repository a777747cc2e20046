"""`/v1/batches`: files of requests, answered beside the requests of clients."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from seesay.serving.errors import ApiError
from seesay.serving.http.bodies import make_api_router
from seesay.serving.http.query import refuse_unknown
from seesay.serving.openai.batch_models import BatchObject, BatchRequest, ObjectPage, make_page
from seesay.serving.openai.files import cannot_store, find_file, stores_of
from seesay.serving.requests.state import ServerState
from seesay.serving.stored.batch_store import BatchStore, StoredBatch
from seesay.serving.traffic.auth import owner_of

PATH = "/v1/batches"
MAX_UNFINISHED = 100
"""Batches of one key that wait or run."""


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")

    @router.post(PATH, response_model=BatchObject)
    async def create_batch(body: BatchRequest, http: Request) -> Response:
        """Answer the requests of an uploaded file."""
        _, batches = stores_of(state)
        await find_file(state, http, body.input_file_id, "input_file_id", status=400)
        after = body.output_expires_after
        await asyncio.to_thread(_check_number, batches, owner_of(http.scope))
        try:
            batch = await asyncio.to_thread(
                batches.create,
                owner_of(http.scope),
                endpoint=body.endpoint,
                input_file_id=body.input_file_id,
                completion_window=body.completion_window,
                expires_at=int(time.time()) + body.window_s,
                metadata=body.metadata,
                output_lifetime_s=None if after is None else after.seconds,
            )
        except OSError as error:
            raise cannot_store(error) from error
        return JSONResponse(BatchObject.of(batch).model_dump())

    @router.get(PATH)
    async def list_batches(
        http: Request,
        after: Annotated[str | None, Query(max_length=64)] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> ObjectPage[BatchObject]:
        """List the batches of this key, the newest first."""
        _, batches = stores_of(state)
        await refuse_unknown(http, "after", "limit")
        found = await asyncio.to_thread(batches.all_of, owner_of(http.scope))
        return make_page(found[::-1], BatchObject.of, after=after, limit=limit)

    @router.get(PATH + "/{batch_id}")
    async def retrieve_batch(batch_id: str, http: Request) -> BatchObject:
        """Return a batch."""
        return BatchObject.of(await _find(state, http, batch_id))

    @router.post(PATH + "/{batch_id}/cancel")
    async def cancel_batch(batch_id: str, http: Request) -> BatchObject:
        """End a batch. The lines that have an answer are in its output file."""
        _, batches = stores_of(state)
        batch = await _find(state, http, batch_id)
        if batch.is_final:
            raise ApiError(409, f"{batch_id} cannot be cancelled: it is {batch.status}", code="not_cancellable")
        await asyncio.to_thread(batches.cancel, batch)
        return BatchObject.of(await _find(state, http, batch_id))

    return router


def _check_number(batches: BatchStore, owner: bytes) -> None:
    if sum(batch.owner == owner.hex() for batch in batches.unfinished()) >= MAX_UNFINISHED:
        message = f"{MAX_UNFINISHED} batches of this key are not done: wait for some, or cancel them"
        raise ApiError(429, message, kind="rate_limit_error", code="too_many_batches", retry_after_s=60)


async def _find(state: ServerState, http: Request, batch_id: str) -> StoredBatch:
    _, batches = stores_of(state)
    batch = await asyncio.to_thread(batches.find, owner_of(http.scope), batch_id)
    if batch is None:
        message = f"batch_id: there is no batch {batch_id[:60]!r}"
        raise ApiError(404, message, param="batch_id", code="not_found")
    return batch
