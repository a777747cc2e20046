"""`/sleep`, `/wake_up`, `/is_sleeping`, `/update_weights` and `/terminate`, for the operator alone: all but one need an
admin key.

Names and query parameters are those of LMDeploy and vLLM where they have the route.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from seesay.engine.commands import PARTS, Command, ModelStatus, Part, Sleep, UpdateWeights, WakeUp
from seesay.errors import CheckpointError, ConfigError
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.http.query import refuse_unknown
from seesay.serving.requests.request_model import RequestModel
from seesay.serving.requests.state import ServerState
from seesay.serving.traffic.auth import require_admin

Running = Annotated[
    Literal["finish", "abort"], Query(description="finish running requests first, or abort them; new ones wait")
]
Tags = Annotated[list[str], Query(description="'weights' and 'kv_cache'; both by default")]
_UPDATE_ID = "http"


class ModelState(BaseModel):
    """The weights that answer, and what sleeps. `weights_epoch` counts how often they have changed. `weights_lost`: the
    engine was started again and could not have all weights again."""

    is_sleeping: bool
    asleep: list[Part]
    weights_epoch: int
    weights_lost: bool

    @classmethod
    def of(cls, status: ModelStatus) -> ModelState:
        return cls(
            is_sleeping=bool(status.asleep),
            asleep=list(status.asleep),
            weights_epoch=status.epoch,
            weights_lost=status.has_lost,
        )


class UpdateWeightsRequest(RequestModel):
    """`POST /update_weights`: a folder of the server, or a piece of the weights."""

    refused: ClassVar[Any] = {
        "serialized_named_tensors": (
            (),
            "not supported: it is a pickle, which can run code. Send `safetensors`: the base64 of a safetensors file",
        ),
        "load_format": ((), "not supported: pieces are the base64 of safetensors files, in `safetensors`"),
    }

    model: str | None = None
    folder: str | None = Field(None, min_length=1, description="a model folder inside --allowed-weights-path")
    safetensors: str | None = Field(None, min_length=1, description="base64 of a safetensors file with some tensors")
    finished: bool = Field(True, description="false: more pieces follow; nothing is replaced yet")
    partial: bool = Field(False, description="there are only some of the weights")
    running: Literal["finish", "abort"] = "finish"


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("operations")

    @router.get("/is_sleeping")
    async def is_sleeping() -> ModelState:
        """Report whether the engine sleeps, and how often its weights have changed."""
        return ModelState.of(await state.shared.read_status())

    @router.post("/sleep")
    async def sleep(
        http: Request,
        level: Annotated[int, Query(description="1: the weights are kept on the host; 2: they are dropped")] = 1,
        tags: Tags = [*PARTS],  # noqa: B006
        running: Running = "finish",
    ) -> ModelState:
        """Free the memory of weights and KV cache. Requests are refused with 503 until `/wake_up`."""
        require_admin(http)
        await refuse_unknown(http, "level", "tags", "running", lists=("tags",))
        if set(tags) != set(PARTS):
            raise bad_request("tags: both parts sleep together, leave it out", "tags")
        try:
            command = Sleep(level=level, running=running)
        except ConfigError as error:
            raise bad_request(str(error), "level") from None
        return await _run(state, command)

    @router.post("/wake_up")
    @router.post("/wakeup", include_in_schema=False)
    async def wake_up(http: Request, tags: Tags = [*PARTS]) -> ModelState:  # noqa: B006
        """Bring weights and KV cache back, or one of them."""
        require_admin(http)
        await refuse_unknown(http, "tags", lists=("tags",))
        for tag in tags:
            if tag not in PARTS:
                raise bad_request(f"tags must be of {', '.join(PARTS)}, got {tag[:40]!r}", "tags")
        return await _run(state, WakeUp(tags=tuple(tags)))

    @router.post("/update_weights", response_model=ModelState)
    async def update_weights(body: UpdateWeightsRequest, http: Request) -> Response:
        """Replace the weights by those of a folder, or by pieces that are sent one after another. An error leaves the
        old ones in use and drops the pieces."""
        require_admin(http)
        state.check_model(body.model)
        if (body.folder is None) == (body.safetensors is None):
            raise bad_request("give exactly one of folder and safetensors", "folder")
        if body.folder is not None:
            if not body.finished:
                raise bad_request("finished: false is for pieces in `safetensors`", "finished")
            folder = _find_folder(body.folder, state.settings.allowed_weights_path)
            command = UpdateWeights(folder=folder, is_partial=body.partial, running=body.running)
        else:
            await _stage(state, body.safetensors or "")
            if not body.finished:
                return JSONResponse(ModelState.of(await state.shared.read_status()).model_dump())
            command = UpdateWeights(update_id=_UPDATE_ID, is_partial=body.partial, running=body.running)
        return JSONResponse((await _run(state, command)).model_dump())

    @router.post("/terminate")
    async def terminate(http: Request) -> dict[str, str]:
        """Shut the server down, as SIGTERM does: running answers are finished."""
        require_admin(http)
        await refuse_unknown(http)
        state.shared.terminate()
        return {"status": "ok"}

    return router


async def _run(state: ServerState, command: Command) -> ModelState:
    try:
        return ModelState.of(await state.shared.run_command(command))
    except CheckpointError as error:
        raise bad_request(str(error)) from None


async def _stage(state: ServerState, encoded: str) -> None:
    from seesay.checkpoint.tensor_source import read_safetensors

    def stage() -> None:
        state.engine.stage_tensors(read_safetensors(base64.b64decode(encoded, validate=True)), _UPDATE_ID)

    try:
        await asyncio.to_thread(stage)
    except binascii.Error as error:
        raise bad_request(f"safetensors is not base64: {error}", "safetensors") from None
    except CheckpointError as error:
        raise bad_request(str(error), "safetensors") from None


def _find_folder(name: str, allowed: str | None) -> str:
    """Return the folder of the server that a request names. Raises `ApiError` for one that it must not name."""
    if allowed is None:
        raise ApiError(
            403,
            "folder: this server reads no weights from folders (start it with --allowed-weights-path to allow one)",
            kind="permission_error",
            param="folder",
            code="folders_not_allowed",
        )
    root = Path(allowed).resolve()
    try:
        folder = (root / name).resolve()
        is_allowed = folder.is_relative_to(root) and folder.is_dir()
    except (OSError, ValueError, RuntimeError):  # such as a name with a NUL, or a loop of links
        is_allowed = False
    if not is_allowed:
        raise bad_request(f"folder must be a folder inside --allowed-weights-path, got {name[:200]!r}", "folder")
    return str(folder)
