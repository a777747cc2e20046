"""Files and batches of OpenAI's API as pydantic models."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, field_validator

from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.requests.fields import Metadata, StrictModel
from seesay.serving.requests.request_model import RequestModel
from seesay.serving.stored.batch_store import Status, StoredBatch
from seesay.serving.stored.file_store import StoredFile

_WINDOW = re.compile(r"[1-9][0-9]{0,3}[mhd]")
MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 24 * 3600
Item = TypeVar("Item", bound=BaseModel)


class FileObject(BaseModel):
    """A stored file. Times are in seconds since 1970."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def of(cls, stored: StoredFile) -> FileObject:
        return cls(
            id=stored.id,
            bytes=stored.num_bytes,
            created_at=stored.created_at,
            expires_at=stored.expires_at,
            filename=stored.filename,
            purpose=stored.purpose,
        )


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchError(BaseModel):
    """Why a batch has failed, and in which line."""

    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    """The lines of a batch. completed: with status 200. failed: the others that have a result."""

    total: int
    completed: int
    failed: int


class BatchObject(BaseModel):
    """A batch. Lines with status 200 are in the output file, the others in the error file."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: StoredBatch) -> BatchObject:
        times: dict[str, Any] = {
            f"{status}_at": batch.times.get(status)
            for status in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        }
        errors = [
            BatchError(code=error.code, message=error.message, line=error.line, param=error.param)
            for error in batch.errors
        ]
        return cls(
            id=batch.id,
            endpoint=batch.endpoint,
            errors=BatchErrors(data=errors) if errors else None,
            input_file_id=batch.input_file_id,
            completion_window=batch.completion_window,
            status=batch.status,
            output_file_id=batch.output_file_id,
            error_file_id=batch.error_file_id,
            created_at=batch.times["validating"],
            expires_at=batch.expires_at,
            request_counts=RequestCounts(total=batch.num_lines, completed=batch.num_completed, failed=batch.num_failed),
            metadata=batch.metadata,
            **times,
        )


class ExpiresAfter(StrictModel):
    """How long a file is stored."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_LIFETIME_S, le=MAX_LIFETIME_S)


class BatchRequest(RequestModel):
    """`POST /v1/batches`."""

    input_file_id: str = Field(max_length=64, description="a file with purpose 'batch'")
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: str = Field(
        json_schema_extra={"pattern": f"^{_WINDOW.pattern}$"},
        description="after this time, lines without an answer fail: minutes, hours or days, such as 24h",
    )
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @field_validator("completion_window")
    @classmethod
    def _check_window(cls, window: str) -> str:
        if not _WINDOW.fullmatch(window):
            raise ValueError(
                f"must be 1 to 9999 minutes, hours or days, such as '30m', '24h' or '7d', got {show(window)}"
            )
        return window

    @property
    def window_s(self) -> int:
        """The completion window in seconds."""
        return int(self.completion_window[:-1]) * {"m": 60, "h": 3600, "d": 86400}[self.completion_window[-1]]


class ObjectPage(BaseModel, Generic[Item]):
    """A part of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def make_page(stored: Sequence[Any], make: Callable[[Any], Item], *, after: str | None, limit: int) -> ObjectPage[Item]:
    """Return up to `limit` objects behind the one with the id `after`. Raises `ApiError` where there is none."""
    begin = 0
    if after is not None:
        ids = [item.id for item in stored]
        if after not in ids:
            raise bad_request(f"after: there is no {after[:60]!r}", "after")
        begin = ids.index(after) + 1
    shown = stored[begin : begin + limit]
    return ObjectPage(
        data=[make(item) for item in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(stored) > begin + limit,
    )
