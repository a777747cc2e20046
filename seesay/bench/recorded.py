"""Reads recordings (`--record`). Their lines are checked before anything is done with them; an error names its line."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from seesay.config import GenerationConfig
from seesay.config.checks import check_types
from seesay.errors import ConfigError, show
from seesay.values.records import RECORD_VERSION, MediaRecord, RequestRecord

MAX_LINE_BYTES = 256 << 20
MAX_LINES = 1 << 20
_MAX_MEDIA_BYTES = 4 << 30
_MAX_TOKENS = 1 << 24
_MAX_TOKEN_ID = 1 << 31
_MAX_SECONDS = 1 << 34
_SHA256 = re.compile("[0-9a-f]{64}")
_DIGITS = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A request of a recording: the number of its line from 1, what that holds, and its options."""

    line: int
    record: RequestRecord
    options: GenerationConfig


def read_recording(path: Path) -> list[Recorded]:
    """Return the requests of a recording, in order of their arrival. Raises `ConfigError` that names the line that is
    damaged."""
    found = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                if number > MAX_LINES:
                    _fail(path, number, f"a recording has at most {MAX_LINES} lines")
                found.append(_read_line(path, number, line))
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    return sorted(found, key=lambda recorded: recorded.record.arrived_at)


def _read_line(path: Path, number: int, line: bytes) -> Recorded:
    if len(line) > MAX_LINE_BYTES:
        _fail(path, number, f"it has more than {MAX_LINE_BYTES} bytes")
    if not line.endswith(b"\n"):
        _fail(path, number, "it is cut off, remove it to replay the others")
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        _fail(path, number, f"it is not JSON, remove it to replay the others: {str(error)[:200]}")
    if not isinstance(value, dict) or value.get("record") != RECORD_VERSION:
        _fail(path, number, f'it is not a request of a recording, which begins with {{"record":{RECORD_VERSION}')
    try:
        record = _make_record(value)
        return Recorded(line=number, record=record, options=_make_options(record.options))
    except (ConfigError, TypeError, ValueError, OverflowError) as error:
        _fail(path, number, str(error)[:400])


def _make_record(value: Mapping[str, Any]) -> RequestRecord:
    given = dict(_take_known(value, RequestRecord))
    given["media"] = _make_all_media(given.get("media", []))
    record = RequestRecord(**given)
    check_types(record)
    if not record.tokens or len(record.tokens) > _MAX_TOKENS:
        raise ConfigError(f"tokens must be a list of 1 to {_MAX_TOKENS} token ids, got {len(record.tokens)}")
    if min(record.tokens) < 0 or not 0 <= record.num_continued < len(record.tokens):
        raise ConfigError("tokens must be token ids, of which num_continued, but not all, begin the answer")
    if not all(0 <= token_id < _MAX_TOKEN_ID for token_id in record.answer):
        raise ConfigError(f"answer must be token ids, integers in [0, {_MAX_TOKEN_ID})")
    for name in ("arrived_at", "first_token_s", "total_s"):
        if not 0 <= getattr(record, name) <= _MAX_SECONDS:
            raise ConfigError(f"{name} must be in [0, {_MAX_SECONDS}] seconds, got {show(getattr(record, name))}")
    _check_positions(record)
    return record


def _check_positions(record: RequestRecord) -> None:
    last = -1
    for item in record.media:
        if not last < item.position < len(record.tokens) - record.num_continued:
            raise ConfigError(f"position of media must be an index of tokens, ascending; got {item.position}")
        last = item.position


def _make_all_media(media: object) -> list[MediaRecord]:
    if not isinstance(media, list) or not all(isinstance(item, dict) for item in media):
        raise ConfigError(f"media must be a list of objects, got {show(media)}")
    return list(map(_make_media, media))


def _make_media(value: Mapping[str, Any]) -> MediaRecord:
    item = MediaRecord(**dict(_take_known(value, MediaRecord)))
    check_types(item)
    if not _SHA256.fullmatch(item.sha256):
        raise ConfigError(f"sha256 must have 64 digits of lower-case hex, got {show(item.sha256)}")
    return item


def _take_known(value: Mapping[str, Any], kind: type[RequestRecord | MediaRecord]) -> Iterator[tuple[str, Any]]:
    known = {each.name: each for each in fields(kind)}
    for name in value:
        if name not in known:
            raise ConfigError(f"{name[:60]!r} is not a field")
    yield from value.items()


def _make_options(given: Mapping[str, Any]) -> GenerationConfig:
    """Return options that are one answer's own. JSON has no keys but texts."""
    options = dict(given)
    bias = options.get("logit_bias")
    if isinstance(bias, dict):
        for key in bias:
            if not _DIGITS.fullmatch(key):
                raise ConfigError(f"options.logit_bias: keys must be token ids, got {show(key)}")
        options["logit_bias"] = {int(key): value for key, value in bias.items()}
    known = {each.name for each in fields(GenerationConfig)}
    for name in options:
        if name not in known or name in ("n", "best_of"):
            raise ConfigError(f"options: {name[:60]!r} is not an option of an answer")
    return GenerationConfig(**options)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _fail(path: Path, number: int, why: str) -> NoReturn:
    raise ConfigError(f"{path}, line {number}: {why}")


class MediaFolder:
    """Finds media by their SHA-256: files of that name, as `--record-media` keeps them, or of any name."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def find(self, sha256: str) -> bytes | None:
        """Return the content of a file, None if it is not there. Raises `ConfigError` for one that has changed."""
        if self._path is None:
            return None
        content = _read_file(self._path / sha256)
        if content is not None:
            if hashlib.sha256(content).hexdigest() != sha256:
                raise ConfigError(f"{self._path / sha256} has another content than was recorded")
            return content
        other = self._others.get(sha256)
        return None if other is None else _read_file(other)

    @cached_property
    def _others(self) -> dict[str, Path]:
        """The files of the folder, by their hash."""
        assert self._path is not None
        found = {}
        for path in sorted(self._path.iterdir()) if self._path.is_dir() else ():
            if not _SHA256.fullmatch(path.name) and (content := _read_file(path)) is not None:
                found[hashlib.sha256(content).hexdigest()] = path
        return found


def _read_file(path: Path) -> bytes | None:
    """Return the content of a regular file, None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_MEDIA_BYTES:
                return None
            return file.read()
    except OSError:
        return None
