"""`/api/tags`, `/api/ps`, `/api/show` and `/api/version`: the model, as Ollama describes it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.serving.errors import bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.ollama.protocol import ShowRequest
from seesay.serving.requests.state import ServerState

API_VERSION = "0.12.6"
"""The version of Ollama whose API this is. Clients refuse to speak to an old one."""

_LATEST = ":latest"


def plain_name(state: ServerState, name: str) -> str:
    """Return the server's name of a model that a client names, which may have Ollama's tag."""
    return name if name in state.model_names else name.removesuffix(_LATEST)


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("Ollama")

    @router.get("/api/tags")
    async def list_models() -> dict[str, list[dict[str, Any]]]:
        """List the names of the model."""
        return {"models": [_describe(state, name) for name in state.model_names]}

    @router.get("/api/ps")
    async def list_running() -> dict[str, list[dict[str, Any]]]:
        """List the models that are loaded, which the model is."""
        return await list_models()

    @router.get("/api/version")
    async def get_version() -> dict[str, str]:
        """Return the version of Ollama whose API this is."""
        return {"version": API_VERSION}

    @router.post("/api/show", response_model=None)
    async def show(body: ShowRequest, http: Request) -> Response:  # noqa: ARG001 - `BodyRoute` passes it
        """Describe the model: what it can do, its context, its chat template."""
        name = body.model or body.name
        if not name:
            raise bad_request("the field model is missing", "model")
        state.check_model(plain_name(state, name))
        return JSONResponse(_show(state))

    return router


def _describe(state: ServerState, name: str) -> dict[str, Any]:
    modified = datetime.fromtimestamp(state.shared.created, UTC).isoformat().replace("+00:00", "Z")
    digest = hashlib.sha256(state.engine.model_path.encode()).hexdigest()
    return {
        "name": name, "model": name, "modified_at": modified, "size": 0, "digest": digest, "details": _details(state),
    }  # fmt: skip


def _details(state: ServerState) -> dict[str, Any]:
    family = state.engine.family.name
    return {
        "parent_model": "", "format": "safetensors", "family": family, "families": [family], "parameter_size": "",
        "quantization_level": "",
    }  # fmt: skip


def _show(state: ServerState) -> dict[str, Any]:
    engine = state.engine
    family = engine.family.name
    can = ["completion"]
    if engine.family.modalities:
        can.append("vision")
    if engine.answer_format.tools is not None and engine.chat_template.writes_tools:
        can.append("tools")
    if engine.answer_format.reasoning is not None:
        can.append("thinking")
    return {
        "modelfile": "",
        "parameters": "",
        "template": "\n".join(engine.chat_template.sources),
        "details": _details(state),
        "model_info": {"general.architecture": family, f"{family}.context_length": engine.session_len},
        "capabilities": can,
    }
