"""The modules that a checkpoint leaves unquantized, by name or by pattern."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cached_property

import regex

from seesay.errors import CheckpointError

_PATTERN_S, _ALL_PATTERNS_S = 0.1, 10.0
"""Longest time for one pattern and one module, and for all of them."""
_MAX_PATTERNS = 1_000
_PREFIXES = ("model.", "language_model.")


class Exclusions:
    """Names of modules or of what contains them, or 're:' and a regular expression that a name begins with.

    `where` names the list in messages. Raises `CheckpointError` for too many patterns.
    """

    def __init__(self, entries: Iterable[str], where: str) -> None:
        self._entries = tuple(entries)
        self._where = where
        self._seconds_left = _ALL_PATTERNS_S
        num_patterns = sum(entry.startswith("re:") for entry in self._entries)
        if num_patterns > _MAX_PATTERNS:
            raise CheckpointError(
                f"{where}: at most {_MAX_PATTERNS} patterns may name excluded modules, got {num_patterns}"
            )

    def __contains__(self, module: str) -> bool:
        """Return whether the module that the checkpoint names so is listed. Raises `CheckpointError` for patterns that
        take too long."""
        return any(self._lists(name) for name in _spellings(module))

    def _lists(self, name: str) -> bool:
        return name in self._names or any(self._matches(pattern, name) for pattern in self._patterns)

    def _matches(self, pattern: regex.Pattern[str], name: str) -> bool:
        begun_s = time.thread_time()
        try:
            found = pattern.match(name, timeout=_PATTERN_S) is not None
        except TimeoutError:
            raise CheckpointError(
                f"{self._where}: pattern {pattern.pattern!r} takes too long for module {name!r}"
            ) from None
        self._seconds_left -= time.thread_time() - begun_s
        if self._seconds_left < 0:
            raise CheckpointError(
                f"{self._where}: its {len(self._patterns)} patterns take more than {_ALL_PATTERNS_S:g} s in all"
            )
        return found

    @cached_property
    def _names(self) -> _Names:
        return _Names(entry for entry in self._entries if not entry.startswith("re:"))

    @cached_property
    def _patterns(self) -> list[regex.Pattern[str]]:
        return [compile_pattern(entry, self._where) for entry in self._entries if entry.startswith("re:")]


class _Names:
    """Names of modules; a name is in it if its parts, between dots, contain those of a listed one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {tuple(name.split(".")) for name in names}
        self._lengths = {len(name) for name in self._names}

    def __contains__(self, name: str) -> bool:
        parts = name.split(".")
        return any(
            tuple(parts[start : start + length]) in self._names
            for length in self._lengths
            for start in range(len(parts) - length + 1)
        )


def compile_pattern(entry: str, where: str) -> regex.Pattern[str]:
    """Return the pattern of an entry that begins with 're:'. Raises `CheckpointError` if it is none,
    which names the list that it is in by `where`."""
    try:
        return regex.compile(entry.removeprefix("re:"))
    except (regex.error, RecursionError) as error:
        raise CheckpointError(f"{where}: {entry[:80]!r} is not a regular expression: {error}") from None


def _spellings(module: str) -> set[str]:
    """Return the names that a module has in older and newer versions of one model: lists of exclusions have those of
    the model in memory, tensors have those of the folder."""
    base = module
    while prefix := next((prefix for prefix in _PREFIXES if base.startswith(prefix)), ""):
        base = base.removeprefix(prefix)
    return {module, base, f"model.{base}", f"model.language_model.{base}", f"language_model.model.{base}"}
