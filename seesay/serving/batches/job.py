"""Runs one stored batch from wherever it is to its end."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, Literal

from seesay.errors import ConfigError
from seesay.serving.batches.lines import BadLine, BatchLine, check_custom_ids, read_lines
from seesay.serving.batches.results import ResultFile, make_error_line
from seesay.serving.batches.running import Answer, WriteResult, answer_lines
from seesay.serving.stored.batch_store import BatchStore, LineError, Status, StoredBatch
from seesay.serving.stored.file_store import FileStore, StoreFullError

logger = logging.getLogger("seesay")

_SAVE_INTERVAL_S = 0.5
_KINDS: tuple[Literal["output", "error"], ...] = ("output", "error")


class BatchFailedError(Exception):
    """The batch as a whole cannot be answered."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = LineError(code=code, message=message, param=param)


class BatchJob:
    """The run of a batch. Only one process may run a batch at a time."""

    def __init__(
        self,
        batch: StoredBatch,
        answer: Answer,
        *,
        files: FileStore,
        batches: BatchStore,
        max_line_bytes: int,
        num_at_once: int,
    ) -> None:
        self.batch = batch
        self._answer = answer
        self._files = files
        self._batches = batches
        self._max_line_bytes = max_line_bytes
        self._num_at_once = num_at_once
        self._num_left_bytes = 0
        self._answering: asyncio.Task[None] | None = None
        self._is_cancelled = False

    async def run(self) -> None:
        """Bring the batch into its final state. Cancelled, it leaves the batch as it is, for a later run."""
        status: Status = "cancelled"
        if self.batch.status == "finalizing":
            status = "completed"
        elif self.batch.status != "cancelling":
            status = await self._answer_in_time()
        await asyncio.to_thread(self._finish, status)

    def cancel(self) -> None:
        """End the batch with the status 'cancelled', soon. Lines that are being answered are aborted."""
        if self._answering is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._answering.cancel()

    async def _answer_in_time(self) -> Status:
        """Answer what is left, and return how the batch ends."""
        self._answering = asyncio.create_task(self._answer_all())
        try:
            await self._watch(self._answering)
        finally:
            is_expired = self._answering.cancel()  # whether it still runs
            await asyncio.gather(self._answering, return_exceptions=True)
        if self._is_cancelled:
            return "cancelled"
        if is_expired:
            await asyncio.to_thread(self._write_expired)
            return "expired"
        error = self._answering.exception()
        if error is None:
            self.batch.enter("finalizing")
            await asyncio.to_thread(self._batches.save, self.batch)
            return "completed"
        self.batch.errors = (_explain(self.batch.id, error),)
        return "failed"

    async def _watch(self, answering: asyncio.Task[None]) -> None:
        """Store how far the batch is, until it is answered or expires."""
        saved: object = None
        while not answering.done() and (left_s := self.batch.expires_at - time.time()) > 0:
            await asyncio.wait([answering], timeout=min(_SAVE_INTERVAL_S, left_s))
            state = self.batch.status, self.batch.num_completed, self.batch.num_failed
            if state != saved:
                saved = state
                await asyncio.to_thread(self._batches.save, self.batch)

    # --- lines -------------------------------------------------------------------------------------------------------

    async def _answer_all(self) -> None:
        if self.batch.status == "validating":
            self.batch.num_lines = await asyncio.to_thread(self._check)
            self.batch.enter("in_progress")
        self._num_left_bytes = await asyncio.to_thread(self._files.num_left_bytes)
        good, bad = await asyncio.to_thread(self._open_results)
        with good, bad, _open_input(self._files, self.batch) as file:
            left, write = self._left(file, good, bad), self._writer(good, bad)
            await answer_lines(left, self._answer, write, num_at_once=self._num_at_once)

    def _check(self) -> int:
        """Return the number of lines. Raises `BatchFailedError` for an input that cannot be answered at all."""
        try:
            with _open_input(self._files, self.batch) as file:
                num_lines = check_custom_ids(file, max_bytes=self._max_line_bytes)
        except ConfigError as error:
            raise BatchFailedError("duplicate_custom_id", str(error), "custom_id") from None
        if num_lines == 0:
            raise BatchFailedError("empty_file", "the input file has no lines", "input_file_id")
        return num_lines

    def _open_results(self) -> tuple[ResultFile, ResultFile]:
        """Return the files of results with status 200, and of the others."""
        good = ResultFile(self._batches.results_path(self.batch.id, "output"))
        try:
            return good, ResultFile(self._batches.results_path(self.batch.id, "error"))
        except BaseException:
            good.close()
            raise

    def _left(self, file: BinaryIO, good: ResultFile, bad: ResultFile) -> Iterator[BatchLine | BadLine]:
        """Yield the lines of the input that have no result yet."""
        for line in read_lines(file, max_bytes=self._max_line_bytes, endpoints=(self.batch.endpoint,)):
            if not (good.has(line) or bad.has(line)):
                yield line

    def _writer(self, good: ResultFile, bad: ResultFile) -> WriteResult:
        def write(result: bytes, is_good: bool) -> None:
            self._num_left_bytes -= len(result)
            if self._num_left_bytes < 0:
                raise StoreFullError
            (good if is_good else bad).write(result, is_good=is_good)
            self.batch.num_completed, self.batch.num_failed = good.num_results, bad.num_results

        return write

    def _write_expired(self) -> None:
        """Write an error for every line that has no result."""
        good, bad = self._open_results()
        message = f"this line was not answered within {self.batch.completion_window}"
        with good, bad, suppress(BatchFailedError), _open_input(self._files, self.batch) as file:
            for line in self._left(file, good, bad):
                bad.write(make_error_line(line, "batch_expired", message), is_good=False)
            self.batch.num_failed = bad.num_results

    # --- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, status: Status) -> None:
        """Make files of the results. Repeated after a crash, it does the same."""
        ids: list[str | None] = []
        for kind in _KINDS:
            results = self._batches.results_path(self.batch.id, kind)
            file_id = f"file-{hashlib.sha256(f'{self.batch.id} {kind}'.encode()).hexdigest()[:24]}"
            if results.exists() and results.stat().st_size == 0:
                results.unlink()
            self._files.adopt(
                self.batch.owner,
                results,
                file_id=file_id,
                filename=f"{self.batch.id}_{kind}.jsonl",
                lifetime_s=self.batch.output_lifetime_s,
            )
            ids.append(file_id if self._files.path(file_id).exists() else None)
        self.batch.output_file_id, self.batch.error_file_id = ids
        self.batch.enter(status)
        self._batches.save(self.batch)


def _open_input(files: FileStore, batch: StoredBatch) -> BinaryIO:
    try:
        return files.path(batch.input_file_id).open("rb")
    except OSError:
        raise BatchFailedError("file_not_found", "the input file was deleted", "input_file_id") from None


def _explain(batch_id: str, error: BaseException) -> LineError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, BatchFailedError):
        return error.error
    if isinstance(error, (StoreFullError, OSError)):
        logger.error("%s: results cannot be stored: %s", batch_id, error)
        return LineError(code="storage_full", message="the results cannot be stored: the server has no room")
    logger.error("%s failed", batch_id, exc_info=error)
    return LineError(code="internal_error", message=f"the server failed on this batch ({batch_id} in its log)")
