"""`/v1/models`: the one that is served."""

from __future__ import annotations

from fastapi import APIRouter

from seesay.serving.openai.protocol import ModelCard, ModelList
from seesay.serving.state import ServerState


def make_router(state: ServerState) -> APIRouter:
    """The routes, over `state`."""
    router = APIRouter(tags=["OpenAI"])
    card = ModelCard(id=state.model_name, created=state.created, max_model_len=state.engine.session_len)

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The models that requests may name."""
        return ModelList(data=[card])

    @router.get("/v1/models/{model:path}")
    async def retrieve_model(model: str) -> ModelCard:
        """One of them."""
        state.check_model(model)
        return card

    return router
