"""`/health`, `/ready`, `/version`, `/metrics` and `/reset_caches`, for the operator of the server."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from seesay.engine.commands import make_sleeping_error
from seesay.serving.errors import ApiError
from seesay.serving.http.query import refuse_unknown
from seesay.serving.requests.state import ServerState
from seesay.serving.traffic.admission import shutting_down
from seesay.serving.traffic.metrics import CONTENT_TYPE
from seesay.version import __version__


class Health(BaseModel):
    """`status` is 'ok', or 'sleeping' for a server that was put to sleep. One that is not healthy answers with an error
    instead. `weights_epoch` counts how often the weights have changed. `frontends_up`: those of `--frontends` that
    answer."""

    status: Literal["ok", "sleeping"] = "ok"
    weights_epoch: int
    frontends_up: int


class Done(BaseModel):
    status: Literal["ok"] = "ok"


class Version(BaseModel):
    version: str = __version__


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    def read_health() -> Health:
        if state.gate.is_draining:
            raise shutting_down()
        status = state.engine.status
        if not status.asleep and (fault := state.engine.fault) is not None:
            raise ApiError(503, fault.reason, kind="server_error", code="engine_down", retry_after_s=5)
        return Health(
            status="sleeping" if status.asleep else "ok",
            weights_epoch=status.epoch,
            frontends_up=state.shared.num_frontends_up,
        )

    @router.get("/health")
    async def health() -> Health:
        """Report whether requests are answered: 503 while the server shuts down, and while the engine does not work. A
        server that sleeps works: it answers requests with 503, and waits to be woken up."""
        return read_health()

    @router.get("/ready")
    async def ready() -> Health:
        """Report whether a request would be computed now: like `/health`, and 503 also while the server sleeps."""
        if state.engine.status.asleep and not state.gate.is_draining:
            raise ApiError.from_error(make_sleeping_error(state.engine.status))
        return read_health()

    @router.get("/version")
    async def version() -> Version:
        """Return the version of seesay."""
        return Version()

    @router.post("/reset_caches")
    async def reset_caches(http: Request) -> Done:
        """Clear the caches of preprocessed media, embeddings and prefixes. Running requests continue."""
        await refuse_unknown(http)
        await state.shared.reset_caches()
        return Done()

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Return all metrics in Prometheus' text format."""
        figures = await state.shared.gather_figures(state.metrics.read_frontend())
        return Response(state.metrics.render(figures), headers={"content-type": CONTENT_TYPE})

    return router
