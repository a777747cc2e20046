"""The probes of other servers under their names: whether the server lives, how much it does, which model it has; and
their names of commands."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from seesay.serving.http.query import refuse_unknown
from seesay.serving.requests.state import ServerState


class Load(BaseModel):
    """HTTP requests of this frontend that are being answered, and those of them that wait for a place."""

    server_load: int
    num_running: int
    num_waiting: int


class ModelFacts(BaseModel):
    """The facts about the model, in SGLang's form."""

    model_path: str
    tokenizer_path: str
    is_generation: bool = True
    max_model_len: int


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_ping_router()

    @router.get("/load")
    async def load() -> Load:
        """Return how many requests this frontend answers."""
        answering = state.answering
        running, waiting = answering.num_running, answering.num_waiting
        return Load(server_load=running, num_running=running - waiting, num_waiting=waiting)

    @router.get("/get_model_info")
    async def get_model_info() -> ModelFacts:
        """Return what SGLang says about its model."""
        path = state.engine.model_path
        return ModelFacts(model_path=path, tokenizer_path=path, max_model_len=state.engine.session_len)

    @router.post("/flush_cache")
    async def flush_cache(http: Request) -> dict[str, Any]:
        """Do what `/reset_caches` does, under SGLang's name."""
        await refuse_unknown(http)
        await state.shared.reset_caches()
        return {"success": True}

    return router


def make_ping_router() -> APIRouter:
    """Return the routes of liveness."""
    router = APIRouter(tags=["operations"])

    @router.get("/live")
    @router.get("/ping")
    @router.post("/ping")
    async def ping() -> Response:
        """Answer with nothing while the process lives, also while it shuts down or the engine does not work."""
        return Response(status_code=200)

    return router
