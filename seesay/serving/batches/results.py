"""Writes the results of a batch to a file that outlives a crash: each is one line, appended and flushed.

A file that is opened again is repaired: a result that was not written to its end is removed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from seesay.errors import ConfigError
from seesay.serving.batches.lines import BadLine, BatchLine

_BEGINS = b'{"id":"batch_req_', b'{"id": "batch_req_'  # as written here, and by a program that has edited the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to a line: the status, the id and the body of the HTTP response."""

    status_code: int
    request_id: str
    body: bytes


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw | str


class _Error(msgspec.Struct):
    code: str
    message: str
    line: int


class _Result(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Response | None
    error: _Error | None


class _Stored(msgspec.Struct):
    """What is read of a result of an earlier run. Its body is skipped."""

    class StoredResponse(msgspec.Struct):
        status_code: int

    class StoredError(msgspec.Struct):
        line: int | None = None

    custom_id: str | None
    response: StoredResponse | None = None
    error: StoredError | None = None


def make_answer_line(line: BatchLine, answered: Answered) -> bytes:
    """Return the result of a line that has an answer, good or not."""
    try:
        msgspec.json.decode(answered.body)
        body: msgspec.Raw | str = msgspec.Raw(answered.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        body = answered.body.decode(errors="replace")  # of a proxy, for example
    response = _Response(answered.status_code, answered.request_id, body)
    return _encode(line.custom_id, response, None)


def make_error_line(line: BatchLine | BadLine, code: str, message: str) -> bytes:
    """Return the result of a line that has no answer."""
    return _encode(line.custom_id, None, _Error(code, message, line.number))


def _encode(custom_id: str | None, response: _Response | None, error: _Error | None) -> bytes:
    encoded = msgspec.json.encode(_Result(f"batch_req_{secrets.token_hex(12)}", custom_id, response, error))
    return encoded.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"  # a body may be written over several lines


class ResultFile:
    """A file of results, locked while it is open.

    `num_bytes` is its size; `num_good` and `num_bad` count its results with status 200 and the others.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file and repair its end. Raises `ConfigError` for a file of something else, and for one
        that another process writes to."""
        self.path = path
        self.num_good = self.num_bad = 0
        self._ids: set[str] = set()
        self._bad_lines: set[int] = set()  # of lines without a custom_id
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        self._file: BinaryIO = os.fdopen(descriptor, "r+b")
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{path}: another process writes to this file") from None
            self.num_bytes = self._read()
            self._file.truncate(self.num_bytes)
            self._file.seek(self.num_bytes)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_results(self) -> int:
        """The number of lines that have a result."""
        return self.num_good + self.num_bad

    def has(self, line: BatchLine | BadLine) -> bool:
        """Return whether the file has a result of this line."""
        return line.number in self._bad_lines if line.custom_id is None else line.custom_id in self._ids

    def write(self, result: bytes, *, is_good: bool) -> None:
        """Append a result, a line with its end. It is in the file when this returns. Raises OSError."""
        self._file.write(result)
        self._file.flush()
        self.num_bytes += len(result)
        self._count(is_good)

    def close(self) -> None:
        """Close the file. Calling it again does nothing."""
        self._file.close()

    def _read(self) -> int:
        """Note what the file has, and return the number of bytes of its whole results."""
        num_bytes = 0
        for number, result in enumerate(self._file, start=1):
            if not result.endswith(b"\n"):
                if not any(result.startswith(begin[: len(result)]) for begin in _BEGINS):
                    raise self._refuse(number)
                break
            self._note(result, number)
            num_bytes += len(result)
        return num_bytes

    def _note(self, result: bytes, number: int) -> None:
        try:
            stored = msgspec.json.decode(result, type=_Stored)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise self._refuse(number) from None
        if stored.custom_id is not None:
            self._ids.add(stored.custom_id)
        elif stored.error is not None and stored.error.line is not None:
            self._bad_lines.add(stored.error.line)
        self._count(stored.response is not None and stored.response.status_code == 200)

    def _count(self, is_good: bool) -> None:
        self.num_good += is_good
        self.num_bad += not is_good

    def _refuse(self, number: int) -> ConfigError:
        return ConfigError(f"{self.path}: line {number} is not the result of a batch: give another file")
