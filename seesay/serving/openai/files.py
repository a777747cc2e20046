"""`/v1/files`: the input and the results of batches. A file belongs to the key that it was uploaded with."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response

from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.http.query import refuse_unknown
from seesay.serving.openai.batch_models import (
    MAX_LIFETIME_S,
    MIN_LIFETIME_S,
    DeletedFile,
    FileObject,
    ObjectPage,
    make_page,
)
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import ClientGoneError
from seesay.serving.stored.batch_store import BatchStore
from seesay.serving.stored.file_store import FileStore, StoredFile, StoreFullError
from seesay.serving.traffic.auth import owner_of

logger = logging.getLogger("seesay")

PATH = "/v1/files"
_FIELDS = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")
_MAX_NAME_CHARS = 255
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"enum": ["batch"]},
                        "expires_after[anchor]": {"enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": MIN_LIFETIME_S,
                            "maximum": MAX_LIFETIME_S,
                        },
                    },
                }
            }
        },
    }
}
Order = Literal["asc", "desc"]
Limit = Annotated[int, Query(ge=1, le=10000)]


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")

    @router.post(PATH, openapi_extra=_FORM)
    async def upload_file(http: Request) -> FileObject:
        """Store a file of requests, one a line, for `/v1/batches`."""
        files, _ = stores_of(state)
        try:
            async with http.form(max_files=1, max_fields=8, max_part_size=1024) as form:
                return FileObject.of(await _store(files, owner_of(http.scope), form))
        except ClientDisconnect:
            raise ClientGoneError from None

    @router.get(PATH)
    async def list_files(
        http: Request,
        purpose: Annotated[str | None, Query(max_length=64)] = None,
        after: Annotated[str | None, Query(max_length=64)] = None,
        limit: Limit = 10000,
        order: Order = "desc",
    ) -> ObjectPage[FileObject]:
        """List the files of this key."""
        files, _ = stores_of(state)
        await refuse_unknown(http, "purpose", "after", "limit", "order")
        found = await asyncio.to_thread(files.all_of, owner_of(http.scope))
        shown = [stored for stored in found if purpose in (None, stored.purpose)]
        return make_page(shown if order == "asc" else shown[::-1], FileObject.of, after=after, limit=limit)

    @router.get(PATH + "/{file_id}")
    async def retrieve_file(file_id: str, http: Request) -> FileObject:
        """Return what is known of a file."""
        return FileObject.of(await find_file(state, http, file_id, "file_id"))

    @router.get(PATH + "/{file_id}/content", response_class=FileResponse)
    async def retrieve_file_content(file_id: str, http: Request) -> Response:
        """Return the content of a file."""
        stored = await find_file(state, http, file_id, "file_id")
        return FileResponse(
            stores_of(state)[0].path(stored.id), media_type="application/jsonl", filename=stored.filename
        )

    @router.delete(PATH + "/{file_id}")
    async def delete_file(file_id: str, http: Request) -> DeletedFile:
        """Delete a file."""
        files, batches = stores_of(state)
        stored = await find_file(state, http, file_id, "file_id")
        await asyncio.to_thread(_check_unused, batches, stored)
        await asyncio.to_thread(files.delete, stored)
        return DeletedFile(id=file_id)

    return router


def stores_of(state: ServerState) -> tuple[FileStore, BatchStore]:
    """Return the stores of a server. Raises `ApiError` where it has none."""
    if state.files is None or state.batches is None:
        raise ApiError(
            404, "this server stores no files and runs no batches: start it with --files-dir FOLDER", code="no_files"
        )
    return state.files, state.batches


async def find_file(state: ServerState, http: Request, file_id: str, param: str, *, status: int = 404) -> StoredFile:
    """Return a file of the sender of a request. Raises `ApiError` with `status` where there is none."""
    files, _ = stores_of(state)
    stored = await asyncio.to_thread(files.find, owner_of(http.scope), file_id)
    if stored is None:
        raise ApiError(status, f"{param}: there is no file {file_id[:60]!r}", param=param, code="not_found")
    return stored


def cannot_store(error: Exception) -> ApiError:
    """Return the error for what the folder of files does not take."""
    if not isinstance(error, StoreFullError):
        logger.error("a file cannot be stored: %s", error)
    message = "the server has no room for more files: delete some, or ask its operator for more (--files-max-bytes)"
    return ApiError(507, message, kind="server_error", code="storage_full")


async def _store(files: FileStore, owner: bytes, form: FormData) -> StoredFile:
    upload, lifetime_s = _read_form(form)
    name = (upload.filename or "batch.jsonl").replace("\\", "/").rpartition("/")[2][:_MAX_NAME_CHARS]
    if not name.isprintable():
        raise bad_request("file: its name must have printable characters only", "file")
    try:
        return await asyncio.to_thread(
            files.put, owner, upload.file, filename=name, purpose="batch", lifetime_s=lifetime_s
        )
    except (StoreFullError, OSError) as error:
        raise cannot_store(error) from error


def _read_form(form: FormData) -> tuple[UploadFile, int | None]:
    """Return the file, and how long it is stored. Raises `ApiError` that names the field at fault."""
    for name in form:
        if name not in _FIELDS:
            raise bad_request(f"unknown field: {name[:60]}", name[:60], code="unknown_parameter")
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise bad_request("file: a file is required, as multipart/form-data", "file")
    purpose = form.get("purpose")
    if purpose != "batch":
        raise bad_request(f"purpose must be 'batch', got {str(purpose)[:60]!r}", "purpose")
    return upload, _read_lifetime(form.get(_FIELDS[2]), form.get(_FIELDS[3]))


def _read_lifetime(anchor: object, seconds: object) -> int | None:
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise bad_request("expires_after[anchor] must be 'created_at'", _FIELDS[2])
    if not isinstance(seconds, str) or not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 10):
        raise bad_request("expires_after[seconds] must be an integer", _FIELDS[3])
    if not MIN_LIFETIME_S <= int(seconds) <= MAX_LIFETIME_S:
        limits = f"from {MIN_LIFETIME_S} to {MAX_LIFETIME_S}"
        raise bad_request(f"expires_after[seconds] must be {limits}, got {seconds}", _FIELDS[3])
    return int(seconds)


def _check_unused(batches: BatchStore, stored: StoredFile) -> None:
    for batch in batches.unfinished():
        if batch.input_file_id == stored.id:
            raise ApiError(409, f"{stored.id} is the input of {batch.id}, which is not done: cancel it", code="in_use")
