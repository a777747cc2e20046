"""The folder of a run: finished layers, so that an interrupted run goes on, and at the end the checkpoint.

While a run is under way everything is in a hidden folder inside. Files get their names once they are whole, and
config.json, without which a folder is no model, comes last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.files import read_object
from seesay.checkpoint.tensors import SINGLE_FILE
from seesay.errors import CheckpointError, ConfigError

_HIDDEN = ".seesay-lite"
_SETTINGS, _CONFIG, _NOTES, _LOCK = "settings.json", "config.json", "notes.json", "lock"
_HASHED = {
    "calibration": "other calibration prompts (calib_dataset, calib_samples, calib_seqlen)",
    "model": "another model, or one whose files were others",
}
"""Settings that are hashes, and what it means that they differ."""


class WorkFolder:
    """A run with these settings in folder `path`, new or begun before. No other run uses the folder before `close`, or
    before the process ends.

    Raises `ConfigError` for a folder with other files in it, with finished parts of a run with other settings, or which
    another run uses.
    """

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        check_run(path, settings)
        self.path = path
        self._hidden = path / _HIDDEN
        try:
            self._hidden.mkdir(parents=True, exist_ok=True)
            self._lock = (self._hidden / _LOCK).open("w")
        except OSError as error:
            raise ConfigError(f"work_dir={str(path)!r} cannot be used: {error.strerror or error}") from None
        try:
            _lock(path, self._lock)
            check_run(path, settings, is_own=True)  # another run may have been here meanwhile
            self._begin(_as_read(settings))
        except BaseException:
            self.close()
            raise

    def _begin(self, settings: Mapping[str, object]) -> None:
        """Remove what another run without a finished part has left."""
        if _read_settings(self.path) == settings:
            return
        with writing(self.path):
            _clear(self._hidden)
            new = self._hidden / f"{_SETTINGS}.new"
            _write_json(new, settings)
            new.replace(self._hidden / _SETTINGS)

    def close(self) -> None:
        """Let other runs use the folder."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_finished(self) -> int:
        """Number of parts that are finished."""
        return _count_finished(self.path)

    def find(self, part: str) -> Checkpoint | None:
        """Return a part of the model if it is finished."""
        folder = self._part(part)
        with _reading(folder):
            return Checkpoint.load(folder) if folder.is_dir() else None

    def read_notes(self, part: str) -> dict[str, Any]:
        """Return the notes of a finished part."""
        folder = self._part(part)
        with _reading(folder):
            return read_object(folder / _NOTES) or {}

    def finish(
        self, part: str, tensors: Mapping[str, Tensor], config: Mapping[str, object], notes: Mapping[str, object]
    ) -> Checkpoint:
        """Keep a part of the model, and return it as a checkpoint. `config` is config.json of the whole."""
        folder = self._part(part)
        new = folder.with_name(f"new-{part}")
        with writing(self.path):
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            save_file(dict(tensors), new / SINGLE_FILE, metadata={"format": "pt"})
            _write_json(new / _CONFIG, config)
            _write_json(new / _NOTES, notes)
            new.rename(folder)
        return Checkpoint.load(folder)

    def stage(self) -> Path:
        """Return an empty folder for the files of the result."""
        folder = self._hidden / "result"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def publish(self) -> None:
        """Move the staged files to their places, config.json last, and remove what the run kept."""
        staged = sorted((self._hidden / "result").iterdir(), key=lambda file: (file.name == _CONFIG, file.name))
        for file in staged:
            file.replace(self.path / file.name)
        _clear(self._hidden)
        self.close()  # before its file is removed, as NFS keeps open files
        shutil.rmtree(self._hidden)

    def _part(self, part: str) -> Path:
        return self._hidden / f"part-{part}"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `ConfigError` for what cannot be written to a run's folder, such as to a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"work_dir={str(path)!r} cannot be written, the run may go on later: {error}") from error


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Add to an error in a file of a run's folder that removing `folder` is enough."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{error}: remove {folder}, and the same command makes it again") from None


def _lock(path: Path, file: IO[str]) -> None:
    """Lock a run's folder until `file` is closed, also by the end of the process. Raises `ConfigError` if another run
    has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"work_dir={str(path)!r} is used by another run: wait for it, or give another folder"
        ) from None
    except OSError:
        return  # a file system without locks


def check_usable(path: Path, *, is_own: bool = False) -> None:
    """Raise `ConfigError` unless a run may begin or go on in a folder: it is new, empty, or has an unfinished run that
    no process is computing. is_own: the caller has locked it."""
    name = _find_foreign(path)
    exists = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(exists, os.W_OK | os.X_OK):
        raise ConfigError(f"work_dir={str(path)!r} cannot be used: {exists} cannot be written")
    if name is not None:
        raise ConfigError(f"work_dir={str(path)!r} must be a new or an empty folder, it has {name!r} in it")
    if is_own:
        return
    with contextlib.suppress(OSError), (path / _HIDDEN / _LOCK).open() as file:
        _lock(path, file)


def _find_foreign(path: Path) -> str | None:
    """Return the name of a file in a folder in which no run has begun; None if there is none."""
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.name != _HIDDEN) if path.exists() else []
        is_begun = (path / _HIDDEN / _SETTINGS).exists()
    except NotADirectoryError:
        raise ConfigError(f"work_dir must be a folder, got the file {str(path)!r}") from None
    except OSError as error:
        raise ConfigError(f"work_dir={str(path)!r} cannot be used: {error.strerror or error}") from None
    return names[0] if names and not is_begun else None


def check_run(path: Path, settings: Mapping[str, object], *, is_own: bool = False) -> None:
    """Raise `ConfigError` unless a run with these settings, which may be some of its own, may begin or go on in a
    folder. is_own: the caller has locked it."""
    check_usable(path, is_own=is_own)
    begun = _read_settings(path)
    if begun is None or not _count_finished(path):
        return
    others = [
        _HASHED.get(name) or f"{name}={begun.get(name)!r}, this one has {value!r}"
        for name, value in sorted(_as_read(settings).items())
        if begun.get(name) != value
    ]
    if others:
        raise ConfigError(
            f"work_dir={str(path)!r} has an unfinished run with {'; '.join(others)}: "
            "repeat that run, or remove the folder"
        )


def copy_files(source: Path, target: Path, suffixes: Iterable[str], *, leave_out: Iterable[str]) -> None:
    """Copy the files of a model folder that are not weights. Raises `CheckpointError` for one that cannot be read."""
    for file in sorted(source.iterdir()):
        if file.suffix in suffixes and file.name not in leave_out and file.is_file():
            try:
                shutil.copyfile(file, target / file.name)
            except OSError as error:
                raise CheckpointError(f"cannot copy {file}: {error}") from None


def _read_settings(path: Path) -> dict[str, object] | None:
    """Return the settings of the run that was begun in a folder."""
    hidden = path / _HIDDEN
    with _reading(hidden):
        return read_object(hidden / _SETTINGS) if hidden.is_dir() else None


def _as_read(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings as they are read again: a tuple becomes a list."""
    return dict(json.loads(json.dumps(settings)))


def _count_finished(path: Path) -> int:
    return sum(1 for entry in (path / _HIDDEN).iterdir() if entry.name.startswith("part-"))


def _write_json(file: Path, value: Mapping[str, object]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _clear(hidden: Path) -> None:
    """Remove all files of a run except the lock."""
    for entry in hidden.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()
