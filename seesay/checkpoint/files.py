"""Read the text files of a model folder, which may be hostile: their size and kind are checked first."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seesay.errors import CheckpointError, show

_MAX_TEXT_BYTES = 16 << 20
"""Largest JSON or text file that is read. The index of 100,000 tensors is half as large."""
_MAX_NAME_BYTES, _MAX_PATH_CHARS = 255, 1024
_MAX_TOKENIZER_BYTES = 64 << 20
"""Largest file of a tokenizer. A tokenizer of 250,000 tokens is half as large."""


def read_text(file: Path, *, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    """Return `read_bytes` as text. Raises UnicodeDecodeError if it is none."""
    return read_bytes(file, max_bytes=max_bytes).decode()


def read_bytes(file: Path, *, max_bytes: int = _MAX_TEXT_BYTES) -> bytes:
    """Return the content of a file of a model folder. Raises `CheckpointError` if it is too large or not a regular file
    (reading a pipe or a device may never end), and OSError if it cannot be read."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # `open` would name a folder by its descriptor
            raise CheckpointError(f"{file}: not a regular file")
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise _too_large(file, max_bytes)
    return data


def check_tokenizer_files(folder: Path, names: Iterable[str]) -> None:
    """Check the files `names`, which other libraries will read. Raises `CheckpointError` for an existing file that
    `read_text` would refuse, with the larger size limit of tokenizers."""
    for file in (folder / name for name in names):
        try:
            found = file.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error}") from None
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{file}: not a regular file")
        if found.st_size > _MAX_TOKENIZER_BYTES:
            raise _too_large(file, _MAX_TOKENIZER_BYTES)


def _too_large(file: Path, most: int) -> CheckpointError:
    return CheckpointError(f"{file}: has more than {most} bytes, the limit for a file of this kind")


_TAGGED_FLOATS = {name: float(name) for name in ("Infinity", "-Infinity", "NaN")}
"""Numbers that JSON does not have. Transformers writes them as {"__float__": "Infinity"}."""


def _read_tagged_float(data: dict[str, object]) -> object:
    tag = data.get("__float__")
    return _TAGGED_FLOATS.get(tag, data) if len(data) == 1 and isinstance(tag, str) else data


def read_object(file: Path, *, max_bytes: int = _MAX_TEXT_BYTES) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if there is no such file."""
    try:
        data = json.loads(read_text(file, max_bytes=max_bytes), object_hook=_read_tagged_float)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: must hold a JSON object, got a {type(data).__name__}")
    return data


def inside(folder: Path, name: str) -> Path:
    """Return `folder / name`. Raises `CheckpointError` if `name` is absolute or has '..'.

    Symbolic links may lead out of the folder: the hub's cache is made of links to files beside it.
    """
    if not name or Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
        raise CheckpointError(f"{folder}: file name {show(name)} points out of the folder")
    if not _is_possible(name):
        raise CheckpointError(f"{folder}: {show(name)} cannot be the name of a file")
    return folder / name


def _is_possible(name: str) -> bool:
    """Return whether the system could have a file of this name."""
    try:
        longest = max(len(os.fsencode(part)) for part in name.split("/"))
    except UnicodeEncodeError:
        return False
    return longest <= _MAX_NAME_BYTES and len(name) <= _MAX_PATH_CHARS and "\0" not in name
