"""Batches of clients, in a folder of the server: what they are, and how far they are.

A batch is written by whoever creates it, and from then on by the one process that runs it. A cancellation is a file
beside it. Methods read and write the disk: call them in a thread.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal

import msgspec

from seesay.serving.stored.file_store import make_ordered_id, make_private, read_struct, write_struct

_ID = re.compile(r"batch_[0-9a-f]{24}")

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
FINAL = frozenset(["failed", "completed", "expired", "cancelled"])


class LineError(msgspec.Struct, frozen=True):
    """Why a batch has failed."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class StoredBatch(msgspec.Struct, kw_only=True):
    """A batch. `times`: when it entered each status, in seconds since 1970. owner: hexadecimal, of the key that it
    belongs to. output_lifetime_s: how long its results are stored; None: until they are deleted."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    expires_at: int
    metadata: dict[str, str] | None = None
    output_lifetime_s: int | None = None
    status: Status = "validating"
    times: dict[str, int] = msgspec.field(default_factory=dict)
    num_lines: int = 0
    num_completed: int = 0
    num_failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[LineError, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self.status in FINAL

    def enter(self, status: Status) -> None:
        """Change the status, and note the time."""
        self.status = status
        self.times.setdefault(status, int(time.time()))


class BatchStore:
    """The batches below `folder`. Those that are final lie apart, so that looking for the others stays quick."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "batches"
        self._final = folder / "final_batches"

    def create(self, owner: bytes, **fields: object) -> StoredBatch:
        """Store a new batch. `fields` are those of `StoredBatch`. Raises OSError."""
        make_private(self._folder)
        make_private(self._final)
        batch = StoredBatch(id=f"batch_{make_ordered_id()}", owner=owner.hex(), **fields)  # type: ignore[arg-type]
        batch.enter("validating")
        self.save(batch)
        return batch

    def save(self, batch: StoredBatch) -> None:
        """Write a batch. Only the process that runs it calls this."""
        if not batch.is_final:
            write_struct(self._note(batch.id), batch)
            return
        write_struct(self._final / self._note(batch.id).name, batch)
        self._note(batch.id).unlink(missing_ok=True)
        _mark_of(self._note(batch.id)).unlink(missing_ok=True)

    def find(self, owner: bytes, batch_id: str) -> StoredBatch | None:
        """Return a batch of this owner."""
        if not _ID.fullmatch(batch_id):
            return None
        note = self._note(batch_id)
        batch = self._read(note) or self._read(self._final / note.name)  # in this order: it may end meanwhile
        return batch if batch is not None and batch.owner == owner.hex() else None

    def all_of(self, owner: bytes) -> list[StoredBatch]:
        """Return the batches of an owner, the oldest first."""
        return [batch for batch in self._read_all(self._folder, self._final) if batch.owner == owner.hex()]

    def unfinished(self) -> list[StoredBatch]:
        """Return the batches of all owners that are not final, the oldest first."""
        return self._read_all(self._folder)

    def cancel(self, batch: StoredBatch) -> None:
        """Ask the process that runs a batch to end it."""
        _mark_of(self._note(batch.id)).touch()

    def results_path(self, batch_id: str, kind: Literal["output", "error"]) -> Path:
        """Return the path of the results of a batch that runs."""
        return self._folder / f"{batch_id}.{kind}.results"

    def changed_at(self) -> int:
        """Return a number that changes with every batch that is created, changed or cancelled."""
        try:
            return self._folder.stat().st_mtime_ns
        except OSError:
            return 0

    def _read_all(self, *folders: Path) -> list[StoredBatch]:
        """Return the batches of folders, the oldest first. Of one in several, that in the last counts."""
        notes = (note for folder in folders for note in folder.glob("batch_*.json"))
        found = {batch.id: batch for batch in map(self._read, notes) if batch is not None}
        return sorted(found.values(), key=lambda batch: (batch.times["validating"], batch.id))

    def _read(self, note: Path) -> StoredBatch | None:
        batch = read_struct(note, StoredBatch)
        if batch is not None and not batch.is_final and _mark_of(note).exists():
            batch.enter("cancelling")
        return batch

    def _note(self, batch_id: str) -> Path:
        return self._folder / f"{batch_id}.json"


def _mark_of(note: Path) -> Path:
    """Return the file that asks for the end of a batch."""
    return note.with_suffix(".cancel")
