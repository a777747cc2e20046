"""Files that clients upload, and results of batches, in a folder of the server.

Every file is two: its content, and a small JSON beside it, which makes it exist. Several processes may use one folder.
Methods read and write the disk: call them in a thread.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

_ID = re.compile(r"file-[0-9a-f]{24}")
_LEAST_BYTES = 4096
"""A file takes at least this much of the limit, so that the number of files has one, too."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file. Times are in seconds since 1970. owner: hexadecimal, of the key that it belongs to."""

    id: str
    owner: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None


class StoreFullError(Exception):
    """The folder has reached its limit."""


class FileStore:
    """The files below `folder`, with at most `max_bytes` together. The folder is made when the first file comes."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._files = folder / "files"

    def put(
        self, owner: bytes, content: BinaryIO, *, filename: str, purpose: str, lifetime_s: int | None = None
    ) -> StoredFile:
        """Store a copy of `content` from its beginning. Raises `StoreFullError` and OSError."""
        self._remove_expired()
        content.seek(0, os.SEEK_END)
        num_bytes = content.tell()
        content.seek(0)
        if self.num_left_bytes() < max(num_bytes, _LEAST_BYTES):
            raise StoreFullError
        make_private(self._files)
        file_id = f"file-{make_ordered_id()}"
        path = self.path(file_id)
        try:
            with path.open("xb") as copy:
                shutil.copyfileobj(content, copy, 1 << 20)
            return self._add(file_id, owner.hex(), filename, purpose, lifetime_s)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def adopt(self, owner: str, content: Path, *, file_id: str, filename: str, lifetime_s: int | None = None) -> None:
        """Move a file of results in. Does nothing if that has happened before."""
        make_private(self._files)
        if content.exists():
            content.replace(self.path(file_id))
        if self.path(file_id).exists():
            self._add(file_id, owner, filename, "batch_output", lifetime_s)

    def find(self, owner: bytes, file_id: str) -> StoredFile | None:
        """Return a file of this owner that has not expired."""
        if not _ID.fullmatch(file_id):
            return None
        stored = read_struct(self._note(file_id), StoredFile)
        if stored is None or stored.owner != owner.hex() or _is_over(stored):
            return None
        return stored

    def all_of(self, owner: bytes) -> list[StoredFile]:
        """Return the files of an owner, the oldest first."""
        own = (stored for stored in self._all() if stored.owner == owner.hex() and not _is_over(stored))
        return sorted(own, key=lambda stored: (stored.created_at, stored.id))  # ids tell apart what a second has

    def delete(self, stored: StoredFile) -> None:
        """Delete a file. Deleting it again does nothing."""
        self._note(stored.id).unlink(missing_ok=True)
        self.path(stored.id).unlink(missing_ok=True)

    def path(self, file_id: str) -> Path:
        """Return the path of a file's content."""
        return self._files / f"{file_id}.data"

    def num_left_bytes(self) -> int:
        """Return how many bytes the folder may still take."""
        sizes = (_size_of(path) for path in self.folder.rglob("*") if path.suffix in (".data", ".results"))
        return self.max_bytes - sum(max(_LEAST_BYTES, size) for size in sizes)

    def _add(self, file_id: str, owner: str, filename: str, purpose: str, lifetime_s: int | None) -> StoredFile:
        now = int(time.time())
        stored = StoredFile(
            id=file_id,
            owner=owner,
            filename=filename,
            purpose=purpose,
            num_bytes=self.path(file_id).stat().st_size,
            created_at=now,
            expires_at=None if lifetime_s is None else now + lifetime_s,
        )
        write_struct(self._note(file_id), stored)
        return stored

    def _all(self) -> Iterator[StoredFile]:
        for note in self._files.glob("file-*.json"):
            stored = read_struct(note, StoredFile)
            if stored is not None:
                yield stored

    def _note(self, file_id: str) -> Path:
        return self._files / f"{file_id}.json"

    def _remove_expired(self) -> None:
        for stored in self._all():
            if _is_over(stored):
                self.delete(stored)


def _is_over(stored: StoredFile) -> bool:
    return stored.expires_at is not None and stored.expires_at <= time.time()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted meanwhile
        return 0


def make_ordered_id() -> str:
    """Return 24 hexadecimal digits, which nobody can guess and which are in the order of the calls."""
    return f"{time.time_ns() // 1000:013x}{secrets.token_hex(6)[1:]}"


def make_private(folder: Path) -> None:
    """Make a folder that only this user may read."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def write_struct(path: Path, value: msgspec.Struct) -> None:
    """Write a value as JSON, so that a reader sees the file before or after it, and never a part."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        partial.write_bytes(msgspec.json.encode(value))
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_struct(path: Path, kind: type[T]) -> T | None:
    """Return the value that a file has; None for a file that is not there or has none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
