"""Verdicts on grammars that the processes of a server share, as files of a folder: what one of them has tried, the
others need not try."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

MAX_BYTES = 32 << 20
_ENTRY_BYTES = 4096
_SUFFIX = "-grammars"

Verdict = tuple[str, str, Sequence[str], bool]
"""(Why a grammar is refused, or '', its program, what that does not hold, whether it takes long to compile)."""

_decoder = msgspec.msgpack.Decoder(tuple[str, str, list[str], bool])


@contextmanager
def make_shared_folder(address: str) -> Iterator[None]:
    """Have a folder for the processes that use the engine at `address`, which nobody else can guess. Deletes those of
    engines that are gone: a process that was killed leaves its own."""
    for left in Path(tempfile.gettempdir()).glob(f"seesay-*{_SUFFIX}"):
        if not _is_listening(left.name.removesuffix(_SUFFIX)):
            shutil.rmtree(left, ignore_errors=True)
    folder = find_shared_folder(address)
    folder.mkdir(mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_shared_folder(address: str) -> Path:
    return Path(tempfile.gettempdir(), f"{address}{_SUFFIX}")


def _is_listening(address: str) -> bool:
    """Whether a process has a socket of this address. It is not connected to, as the process would wait for more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind("\0" + address)
        except OSError:
            return True
    return False


class SharedVerdicts:
    """Without the folder nothing is kept. Its oldest files are deleted for new ones."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._max_bytes = folder, max_bytes

    def find(self, key: bytes) -> Verdict | None:
        """Return the verdict that a process has come to, if any."""
        try:
            return _decoder.decode((self._folder / key.hex()).read_bytes())
        except (OSError, msgspec.DecodeError):
            return None

    def keep(self, key: bytes, verdict: Verdict) -> None:
        """Let others find a verdict. One that does not fit is not kept."""
        with suppress(OSError):  # such as a full disk
            handle, unfinished = tempfile.mkstemp(prefix="_", dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.msgpack.encode(verdict))
                Path(unfinished).replace(self._folder / key.hex())
            except OSError:
                Path(unfinished).unlink()
                raise
            self._make_room()

    def _make_room(self) -> None:
        found = [(entry.stat(), entry.path) for entry in os.scandir(self._folder) if not entry.name.startswith("_")]
        num_bytes = sum(stat.st_size + _ENTRY_BYTES for stat, _ in found)
        for stat, path in sorted(found, key=lambda one: one[0].st_mtime_ns):
            if num_bytes <= self._max_bytes:
                return
            Path(path).unlink(missing_ok=True)
            num_bytes -= stat.st_size + _ENTRY_BYTES
