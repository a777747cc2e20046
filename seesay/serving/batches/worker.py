"""Runs the stored batches of a server beside its requests, a few at a time."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from seesay.serving.batches.answering import AppAnswering
from seesay.serving.batches.job import BatchJob
from seesay.serving.batches.lines import BatchLine
from seesay.serving.batches.pace import Pace
from seesay.serving.batches.results import Answered
from seesay.serving.stored.batch_store import BatchStore, StoredBatch
from seesay.serving.stored.file_store import FileStore, make_private

if TYPE_CHECKING:
    from fastapi import FastAPI

    from seesay.serving.requests.state import ServerState

logger = logging.getLogger("seesay")

MAX_RUNNING = 4
_INTERVAL_S = 0.25
_RESCAN_INTERVALS = 20
_PAUSE_S = 1.0
_MAX_ATTEMPTS = 4
_WAITING_CODES = frozenset(["sleeping", "shutting_down", "closed"])  # of a server that will answer later
_PASSING = frozenset([429, 503, 504])


@asynccontextmanager
async def running_batches(app: FastAPI) -> AsyncIterator[None]:
    """Run the batches of an app of `create_app` while the block runs, if its server stores files."""
    state: ServerState = app.state.server
    if state.files is None or state.batches is None:
        yield
        return
    worker = asyncio.create_task(BatchWorker(app, state.files, state.batches).run())
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


class BatchWorker:
    """Runs the batches of one folder. Of several processes that share it, one does: it holds a lock."""

    def __init__(self, app: FastAPI, files: FileStore, batches: BatchStore) -> None:
        state: ServerState = app.state.server
        self._app = app
        self._settings = state.settings
        self._files = files
        self._batches = batches
        self._pace = Pace(state.gate, state.settings.max_concurrent_requests)
        self._jobs: dict[str, tuple[BatchJob, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Run batches until cancelled. Those that are not done then are continued by a later worker."""
        lock: BinaryIO | None = None
        try:
            while lock is None:
                lock = self._try_lock()
                await asyncio.sleep(0 if lock else _INTERVAL_S)
            await self._run_all()
        finally:
            tasks = [task for _, task in self._jobs.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if lock is not None:
                lock.close()

    def _try_lock(self) -> BinaryIO | None:
        """Return the lock of the folder, if there is a folder and no other process has the lock."""
        if not self._batches.changed_at():
            return None
        try:
            make_private(self._files.folder)
            lock = (self._files.folder / "lock").open("ab")
        except OSError as error:
            logger.error("batches cannot run: %s", error)
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        return lock

    async def _run_all(self) -> None:
        seen = num_intervals = 0
        while True:
            changed_at = self._batches.changed_at()
            if changed_at != seen or num_intervals % _RESCAN_INTERVALS == 0:
                seen = changed_at
                unfinished = await asyncio.to_thread(self._batches.unfinished)
                self._end(unfinished)
                self._begin(unfinished)
            num_intervals += 1
            await asyncio.sleep(_INTERVAL_S)

    def _end(self, unfinished: list[StoredBatch]) -> None:
        """Forget the jobs that are done, and end those that were cancelled."""
        self._jobs = {batch_id: (job, task) for batch_id, (job, task) in self._jobs.items() if not task.done()}
        for batch in unfinished:
            if batch.status == "cancelling" and batch.id in self._jobs:
                self._jobs[batch.id][0].cancel()

    def _begin(self, unfinished: list[StoredBatch]) -> None:
        """Begin the jobs that there is room for. Owners take turns. Those that were cancelled end at once."""
        for batch in unfinished:
            if batch.status == "cancelling" and batch.id not in self._jobs:
                self._start(batch)
        waiting = [batch for batch in unfinished if batch.id not in self._jobs]
        while waiting and len(self._jobs) < MAX_RUNNING:
            running = Counter(job.batch.owner for job, _ in self._jobs.values())
            batch = min(waiting, key=lambda batch: running[batch.owner])  # the oldest of equals
            waiting.remove(batch)
            self._start(batch)

    def _start(self, batch: StoredBatch) -> None:
        job = self._make_job(batch)
        task = asyncio.create_task(job.run())
        task.add_done_callback(partial(_report, batch.id))
        self._jobs[batch.id] = job, task

    def _make_job(self, batch: StoredBatch) -> BatchJob:
        owner = bytes.fromhex(batch.owner)
        turn = b"batches of " + owner if self._settings.api_keys else "batches"
        return BatchJob(
            batch,
            partial(self._answer, AppAnswering(self._app, owner=owner, turn=turn)),
            files=self._files,
            batches=self._batches,
            max_line_bytes=self._settings.max_body_bytes,
            num_at_once=self._pace.max_lines,
        )

    async def _answer(self, app: AppAnswering, line: BatchLine) -> Answered:
        """Return the answer to a line. It waits for an engine that sleeps, and is asked again after a failure that may
        pass."""
        num_attempts = 0
        while True:
            async with self._pace:
                answered = await app(line)
            code = _code_of(answered) if answered.status_code in _PASSING else None
            if answered.status_code not in _PASSING:
                return answered
            num_attempts += code not in _WAITING_CODES
            if num_attempts == _MAX_ATTEMPTS:
                return answered
            await asyncio.sleep(_PAUSE_S * 2**num_attempts)


def _code_of(answered: Answered) -> str | None:
    with suppress(ValueError, LookupError, TypeError):
        return str(json.loads(answered.body)["error"]["code"])
    return None


def _report(batch_id: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s could not be ended, and will be tried again", batch_id, exc_info=error)
