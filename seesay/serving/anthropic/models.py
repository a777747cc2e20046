"""The list of models in Anthropic's format."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from seesay.serving.errors import bad_request

if TYPE_CHECKING:
    from seesay.serving.requests.state import ServerState


class ModelInfo(BaseModel):
    """A model. Each of its two limits is for prompt and answer together."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class ModelPage(BaseModel):
    """A part of the list of models."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def make_info(state: ServerState, name: str) -> ModelInfo:
    """Return the model under one of its names."""
    session_len = state.engine.session_len
    return ModelInfo(
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(state.shared.created, UTC).isoformat().replace("+00:00", "Z"),
        max_input_tokens=session_len,
        max_tokens=session_len,
    )


def make_page(infos: Sequence[ModelInfo], *, limit: int, after_id: str | None, before_id: str | None) -> ModelPage:
    """Return at most `limit` of `infos`, before or after the named one. Raises `ApiError` 400 for an unknown name."""
    ids = [info.id for info in infos]
    for name, cursor in (("after_id", after_id), ("before_id", before_id)):
        if cursor is not None and cursor not in ids:
            raise bad_request(f"{name}: there is no model {cursor[:100]!r}", name)
    first = 0 if after_id is None else ids.index(after_id) + 1
    last = len(ids) if before_id is None else ids.index(before_id)
    found = infos[first:last]
    page = found[-limit:] if before_id is not None else found[:limit]
    return ModelPage(
        data=list(page),
        has_more=len(page) < len(found),
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
    )
