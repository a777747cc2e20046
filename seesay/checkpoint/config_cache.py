"""Keeps on the disk what slow libraries made of a model's files: the next start of the model need not import them.

Importing Transformers takes seconds: it reads the source files of all its models. A value is found by the hash of
everything that it was made from: the content of files, the options, the versions of the libraries. So no value is ever
out of date, and all of them may be deleted at any time. Where nothing can be written, nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seesay.checkpoint.tensors import update_framed
from seesay.system.user_folders import find_cache_folder

_MAX_BYTES = 256 << 20
"""By default, the largest sum of the files. A tokenizer of 150,000 tokens takes 12 MB, a configuration 5 kB."""


def make_key(kind: str, packages: Sequence[str], sources: Iterable[bytes]) -> str:
    """Return the key of a value of this `kind`, which code of `packages` makes from `sources`."""
    digest = hashlib.sha256()
    update_framed(digest, kind.encode())
    for package in packages:
        update_framed(digest, _describe_package(package).encode())
    for source in sources:
        update_framed(digest, source)
    return f"{kind}-{digest.hexdigest()}"


def read_cached(key: str) -> dict[str, Any] | None:
    """Return the cached value of `key`; None if there is none or it cannot be read."""
    try:
        value = json.loads((find_cache_folder() / f"{key}.json").read_bytes())
    except (OSError, RuntimeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def keep(key: str, value: dict[str, object], *, max_bytes: int = _MAX_BYTES) -> None:
    """Keep a JSON object under `key`, and delete the oldest ones where all take more than `max_bytes`. Does nothing
    where nothing can be written."""
    with suppress(OSError, RuntimeError):
        folder = find_cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=".", suffix=".json")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(value, file)
            Path(name).replace(folder / f"{key}.json")  # another process may do the same now
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _delete_oldest(folder, max_bytes)


def _delete_oldest(folder: Path, max_bytes: int) -> None:
    found = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # another process has deleted it
            status = entry.stat(follow_symlinks=False)
            found.append((status.st_mtime_ns, status.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= max_bytes:
            return
        Path(path).unlink(missing_ok=True)
        total -= size


def _describe_package(name: str) -> str:
    """Return the version of a package, and which installation it is, without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return name
    status = Path(spec.origin).stat()
    return f"{name} {_find_version(name)} {status.st_size} {status.st_mtime_ns}"


@cache
def _find_version(name: str) -> str:
    """Return the version of a package, or an empty text. It is looked up once: that takes 4 ms."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
