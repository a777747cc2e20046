"""`/v1/models`: the model names that requests may use, in OpenAI's or Anthropic's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from seesay.serving.anthropic.messages import make_envelope
from seesay.serving.anthropic.models import ModelInfo, ModelPage, make_info, make_page
from seesay.serving.openai.answer_models import ModelCard, ModelList
from seesay.serving.requests.state import ServerState

_PREFIX = "/v1/models"
_ANTHROPIC_HEADER = "anthropic-version"  # Anthropic's API requires it


def make_router(state: ServerState) -> APIRouter:
    """Return the routes. A request with the header `anthropic-version` gets Anthropic's format, for errors too."""
    state.envelopes.register(_PREFIX, make_envelope, header=_ANTHROPIC_HEADER)
    router = APIRouter(tags=["OpenAI", "Anthropic"])

    @router.get(_PREFIX, response_model=ModelList | ModelPage)
    async def list_models(
        http: Request,
        limit: Annotated[int, Query(ge=1, le=1000, description="Anthropic's API: names per page")] = 20,
        after_id: Annotated[str | None, Query(description="Anthropic's API: names after this one")] = None,
        before_id: Annotated[str | None, Query(description="Anthropic's API: names before this one")] = None,
    ) -> Any:
        """List the models that requests may name."""
        if _ANTHROPIC_HEADER in http.headers:
            infos = [make_info(state, name) for name in state.model_names]
            return make_page(infos, limit=limit, after_id=after_id, before_id=before_id)
        return ModelList(data=[make_card(state, name) for name in state.model_names])

    @router.get(f"{_PREFIX}/{{model:path}}", response_model=ModelCard | ModelInfo)
    async def retrieve_model(model: str, http: Request) -> Any:
        """Return one model."""
        state.check_model(model)
        return make_info(state, model) if _ANTHROPIC_HEADER in http.headers else make_card(state, model)

    return router


def make_card(state: ServerState, name: str) -> ModelCard:
    """Return what OpenAI's API says of a model; of an adapter, which model it changes."""
    parent = state.model_name if name in state.engine.adapter_names else None
    return ModelCard(id=name, created=state.shared.created, max_model_len=state.engine.session_len, parent=parent)


def merge_pages(pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the pages of models of several servers as one. There is at least one."""
    merged = {model["id"]: model for page in pages for model in page["data"]}
    page = {**pages[0], "data": list(merged.values())}
    if "last_id" in page and merged:  # Anthropic's form
        page |= {"first_id": next(iter(merged)), "last_id": list(merged)[-1]}
    return page
