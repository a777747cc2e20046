"""`/health`, `/version`, `/metrics` and `/reset_caches`: for those who run the server."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from seesay.serving.admission import shutting_down
from seesay.serving.metrics import CONTENT_TYPE
from seesay.serving.state import ServerState
from seesay.version import __version__


class Health(BaseModel):
    """status is 'ok'; otherwise the answer is an error."""

    status: str = "ok"


class Version(BaseModel):
    version: str = __version__


def make_router(state: ServerState) -> APIRouter:
    """The routes, over `state`."""
    router = APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> Health:
        """Whether requests are taken: 503 while the server shuts down."""
        if state.gate.is_draining:
            raise shutting_down()
        return Health()

    @router.get("/version")
    async def version() -> Version:
        """The version of seesay."""
        return Version()

    @router.post("/reset_caches")
    async def reset_caches() -> Health:
        """Forget preprocessed media, embeddings and the prefix cache. Requests that are being answered go on."""
        await asyncio.to_thread(state.engine.reset_caches)
        return Health()

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Everything that is counted and timed, for Prometheus."""
        return Response(state.metrics.render(), headers={"content-type": CONTENT_TYPE})

    return router
