"""The run of one stored batch: how it ends, and what a later run finds of it."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seesay.serving.batches.job import BatchJob
from seesay.serving.batches.lines import BatchLine
from seesay.serving.batches.results import Answered
from seesay.serving.batches.running import Answer
from seesay.serving.stored.batch_store import BatchStore, StoredBatch
from seesay.serving.stored.file_store import FileStore

URL = "/v1/embeddings"
GOOD = Answered(status_code=200, request_id="r", body=b'{"a": "' + b"x" * 100 + b'"}')
OWNER = b"o"


async def good(line: BatchLine) -> Answered:
    return GOOD


async def never(line: BatchLine) -> Answered:
    if line.custom_id != "n0":
        await asyncio.get_running_loop().create_future()
    return GOOD


class Place:
    """A folder with an input of three lines."""

    def __init__(self, folder: Path, max_bytes: int = 1 << 20) -> None:
        self.files = FileStore(folder, max_bytes)
        self.batches = BatchStore(folder)

    def create(self, window_s: float = 3600) -> StoredBatch:
        lines = [{"custom_id": f"n{number}", "method": "POST", "url": URL, "body": {}} for number in range(3)]
        content = io.BytesIO("".join(json.dumps(line) + "\n" for line in lines).encode())
        stored = self.files.put(OWNER, content, filename="x", purpose="batch")
        return self.batches.create(
            OWNER,
            endpoint=URL,
            input_file_id=stored.id,
            completion_window="1h",
            expires_at=int(time.time() + window_s),
        )

    def job(self, batch: StoredBatch, answer: Answer) -> BatchJob:
        return BatchJob(batch, answer, files=self.files, batches=self.batches, max_line_bytes=1000, num_at_once=2)

    def stored(self, batch: StoredBatch) -> StoredBatch:
        found = self.batches.find(OWNER, batch.id)
        assert found is not None
        return found

    def read(self, file_id: str | None) -> list[dict[str, Any]]:
        assert file_id is not None
        return [json.loads(line) for line in self.files.path(file_id).read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_lines_that_are_late_expire(place: Place) -> None:
    batch = place.create(window_s=1.5)
    await place.job(batch, never).run()
    found = place.stored(batch)
    assert found.status == "expired" and (found.num_completed, found.num_failed) == (1, 2)
    assert [line["custom_id"] for line in place.read(found.output_file_id)] == ["n0"]
    assert [line["error"]["code"] for line in place.read(found.error_file_id)] == ["batch_expired"] * 2
    assert not place.batches.unfinished()


async def test_a_job_that_is_stopped_leaves_the_batch_for_the_next(place: Place) -> None:
    batch = place.create()
    task = asyncio.create_task(place.job(batch, never).run())
    results = place.batches.results_path(batch.id, "output")
    while not (results.exists() and results.stat().st_size):
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    [found] = place.batches.unfinished()
    assert found.status in ("validating", "in_progress")
    await place.job(found, good).run()
    ended = place.stored(batch)
    assert ended.status == "completed" and ended.num_completed == 3
    assert sorted(line["custom_id"] for line in place.read(ended.output_file_id)) == ["n0", "n1", "n2"]


@pytest.mark.parametrize("num_steps", [0, 1, 2])
async def test_a_crash_while_results_become_files_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    """Output and error file are moved, then the batch is stored: a crash before each of the three."""
    batch = place.create()
    left = num_steps

    def crashing(method: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            nonlocal left
            if place.stored(batch).status == "finalizing":
                left -= 1
                if left < 0:
                    raise KeyError("crash")
            method(*args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(place.files, "adopt", crashing(place.files.adopt))
        patch.setattr(place.batches, "save", crashing(place.batches.save))
        with pytest.raises(KeyError):
            await place.job(batch, good).run()
    [found] = place.batches.unfinished()
    await place.job(found, never).run()
    ended = place.stored(batch)
    assert ended.status == "completed" and len(place.read(ended.output_file_id)) == 3 and ended.error_file_id is None
    assert [stored.purpose for stored in place.files.all_of(OWNER)].count("batch_output") == 1


async def test_results_that_find_no_room_fail_the_batch_and_keep_the_others(tmp_path: Path) -> None:
    place = Place(tmp_path, max_bytes=4096 + 700)  # a file counts with 4096 bytes at least
    batch = place.create()
    await place.job(batch, good).run()
    found = place.stored(batch)
    assert found.status == "failed" and found.errors[0].code == "storage_full"
    assert 0 < len(place.read(found.output_file_id)) < 3


async def test_an_input_that_was_deleted_fails_the_batch(place: Place) -> None:
    batch = place.create()
    place.files.path(batch.input_file_id).unlink()
    await place.job(batch, good).run()
    assert place.stored(batch).errors[0].code == "file_not_found"


async def test_a_fault_of_ours_fails_the_batch(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(line: BatchLine) -> Answered:
        raise KeyError("secret")

    batch = place.create()
    await place.job(batch, fail).run()
    [error] = place.stored(batch).errors
    assert error.code == "internal_error" and "secret" not in error.message and "secret" in caplog.text


async def test_a_cancelled_batch_keeps_its_results_over_a_restart(place: Place) -> None:
    batch = place.create()
    place.batches.cancel(batch)
    [found] = place.batches.unfinished()
    await place.job(found, never).run()
    ended = place.stored(batch)
    assert ended.status == "cancelled" and ended.times["cancelling"] and ended.output_file_id is None
