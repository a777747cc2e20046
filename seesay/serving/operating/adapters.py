"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, with an admin key. Names and fields are those of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from seesay.checkpoint.adapter_folder import CONFIG_FILE, WEIGHTS_FILE
from seesay.engine.commands import Command, LoadAdapter, UnloadAdapter
from seesay.errors import CheckpointError
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.openai.answer_models import ModelCard
from seesay.serving.operating.models import make_card
from seesay.serving.requests.request_model import RequestModel
from seesay.serving.requests.state import ServerState
from seesay.serving.traffic.auth import require_admin

_NAME = Field(min_length=1, max_length=256, pattern=r"^[^\s\x00-\x1f](?:[^\x00-\x1f]*[^\s\x00-\x1f])?$")


class LoadAdapterRequest(RequestModel):
    """`POST /v1/load_lora_adapter`."""

    refused: ClassVar[Any] = {"load_inplace": ((False,), "not supported: unload the adapter of this name first")}

    lora_name: str = _NAME
    lora_path: str = Field(min_length=1, max_length=4096, description="a folder inside --allowed-adapter-folders")


class UnloadAdapterRequest(RequestModel):
    """`POST /v1/unload_lora_adapter`. running: finish the requests that use the adapter, or abort them."""

    refused: ClassVar[Any] = {"lora_int_id": ((), "not supported: adapters have names alone")}

    lora_name: str = _NAME
    running: Literal["finish", "abort"] = "finish"


class UnloadedAdapter(BaseModel):
    """The answer to a request that has unloaded an adapter."""

    id: str
    object: Literal["model"] = "model"
    deleted: Literal[True] = True


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("operations")

    @router.post("/v1/load_lora_adapter", response_model=ModelCard)
    async def load_lora_adapter(body: LoadAdapterRequest, http: Request) -> Response:
        """Let requests name a LoRA adapter as their model. Other requests are answered meanwhile."""
        require_admin(http)
        if body.lora_name in state.own_names:
            raise bad_request(f"lora_name: {body.lora_name!r} is the name of the model itself", "lora_name")
        folder = _find_folder(body.lora_path, state.settings.allowed_adapter_folders)
        await _run(state, LoadAdapter(name=body.lora_name, folder=folder))
        return JSONResponse(make_card(state, body.lora_name).model_dump())

    @router.post("/v1/unload_lora_adapter", response_model=UnloadedAdapter)
    async def unload_lora_adapter(body: UnloadAdapterRequest, http: Request) -> Response:
        """Let no request name an adapter any more, and free its memory once those that use it have ended."""
        require_admin(http)
        await _run(state, UnloadAdapter(name=body.lora_name, running=body.running))
        return JSONResponse(UnloadedAdapter(id=body.lora_name).model_dump())

    return router


async def _run(state: ServerState, command: Command) -> None:
    try:
        await state.shared.run_command(command)
    except CheckpointError as error:
        raise bad_request(str(error), "lora_path") from None


def _find_folder(name: str, allowed: Sequence[str]) -> str:
    """Return the folder of the server that a request names, by its whole path or inside one that is allowed. Raises
    `ApiError` for one that it must not name."""
    if not allowed:
        raise ApiError(
            403,
            "lora_path: this server loads no adapters on request (start it with --allowed-adapter-folders to allow "
            "folders)",
            kind="permission_error",
            param="lora_path",
            code="folders_not_allowed",
        )
    for root in (Path(each).resolve() for each in allowed):
        try:
            folder = (root / name).resolve()
            files = [(folder / file).resolve() for file in (CONFIG_FILE, WEIGHTS_FILE)]
            is_inside = all(path.is_relative_to(root) for path in (folder, *files))  # links may lead out
            if is_inside and folder != root and folder.is_dir():
                return str(folder)
        except (OSError, ValueError, RuntimeError):  # such as a name with a NUL, or a loop of links
            continue
    raise bad_request(f"lora_path must be a folder inside --allowed-adapter-folders, got {name[:200]!r}", "lora_path")
