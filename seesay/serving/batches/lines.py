"""Reads the requests of a batch file, one JSON object a line, in bounded memory.

A line that cannot be a request becomes a `BadLine`, so that it fails alone. Bodies stay bytes: the route that answers
them parses and checks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from seesay.errors import ConfigError, show

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_ID_CHARS = 512
_MAX_NAMED = 5
_BOM = b"\xef\xbb\xbf"
_ABSENT = msgspec.Raw(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """A request of a batch. `number` counts lines from 1. `body` is a JSON object, not validated yet."""

    number: int
    custom_id: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that is not a request. `custom_id` is None where that could not be read."""

    number: int
    custom_id: str | None
    code: str
    message: str


class _Line(msgspec.Struct):
    custom_id: msgspec.Raw = _ABSENT
    method: msgspec.Raw = _ABSENT
    url: msgspec.Raw = _ABSENT
    body: msgspec.Raw = _ABSENT


class _Id(msgspec.Struct):
    custom_id: str


class _Stream(msgspec.Struct):
    stream: msgspec.Raw = _ABSENT


def read_lines(
    file: BinaryIO, *, max_bytes: int, endpoints: Sequence[str] = ENDPOINTS
) -> Iterator[BatchLine | BadLine]:
    """Yield the lines of a file that is open for reading bytes. Empty lines are skipped.

    max_bytes: the longest line; of a longer one, no more than that is kept in memory. endpoints: the allowed URLs.
    """
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        line = line.removeprefix(_BOM)
        if len(line) > max_bytes and not line.endswith(b"\n"):
            _skip_rest(file)
            yield BadLine(
                number=number,
                custom_id=None,
                code="line_too_long",
                message=f"line {number} is longer than {max_bytes} bytes",
            )
        elif line.strip():
            yield _read(line, number, endpoints)


def _skip_rest(file: BinaryIO) -> None:
    while (piece := file.readline(1 << 20)) and not piece.endswith(b"\n"):
        pass


def check_custom_ids(file: BinaryIO, *, max_bytes: int) -> int:
    """Return the number of lines that are not empty. Raises `ConfigError` for a custom_id that several lines have."""
    first: dict[str, int] = {}
    again: list[str] = []
    number = count = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        line = line.removeprefix(_BOM)
        if not line.endswith(b"\n") and len(line) > max_bytes:
            _skip_rest(file)
        elif not line.strip():
            continue
        count += 1
        custom_id = find_custom_id(line)
        if custom_id is not None and first.setdefault(custom_id, number) != number:
            again.append(f"lines {first[custom_id]} and {number} ({show(custom_id)})")
    if again:
        more = f" and {len(again) - _MAX_NAMED} more" if len(again) > _MAX_NAMED else ""
        raise ConfigError(f"custom_id must be unique: {', '.join(again[:_MAX_NAMED])}{more}")
    return count


def find_custom_id(line: bytes) -> str | None:
    """Return the custom_id of a line, or None where it has none that can be used."""
    try:
        custom_id = msgspec.json.decode(line, type=_Id).custom_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return custom_id if 0 < len(custom_id) <= MAX_ID_CHARS else None


def _read(line: bytes, number: int, endpoints: Sequence[str]) -> BatchLine | BadLine:
    custom_id = find_custom_id(line)

    def refuse(code: str, problem: str) -> BadLine:
        return BadLine(number=number, custom_id=custom_id, code=code, message=f"line {number}: {problem}")

    try:
        parts = msgspec.json.decode(line, type=_Line)
        body = bytes(parts.body)
        is_streamed = body.startswith(b"{") and _wants_stream(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return refuse("invalid_json", f"must be a JSON object ({error})")
    if custom_id is None:
        return refuse("invalid_custom_id", f"custom_id must be a text of 1 to {MAX_ID_CHARS} characters")
    method, url = _text(parts.method), _text(parts.url)
    if method is None or method.upper() != "POST":
        return refuse("invalid_method", f"method must be 'POST', got {show(method)}")
    if url is None or url not in endpoints:
        return refuse("invalid_url", f"url must be {' or '.join(endpoints)}, got {show(url)}")
    if not body.startswith(b"{"):
        return refuse("invalid_body", "body must be an object")
    if is_streamed:
        return refuse("invalid_body", "body: stream must not be true in a batch")
    return BatchLine(number=number, custom_id=custom_id, url=url, body=body)


def _text(raw: msgspec.Raw) -> str | None:
    """Return a value that is a text."""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _wants_stream(body: bytes) -> bool:
    return bytes(msgspec.json.decode(body, type=_Stream).stream) == b"true"
