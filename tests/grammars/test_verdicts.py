"""Processes of a server share what they have found out about grammars."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from seesay.config.grammar import Grammar
from seesay.engine.process.listener import open_listener
from seesay.errors import RequestError
from seesay.grammars.trials import GrammarTrials
from seesay.grammars.verdicts import SharedVerdicts, find_shared_folder, make_shared_folder
from seesay.system.python import python_command

TOKENS = [bytes([i]) for i in range(256)]
GOOD = Grammar(kind="json_schema", source=json.dumps({"type": "integer", "minimum": 3}))
BAD = Grammar(kind="json_schema", source=json.dumps({"type": "no such type"}))


@pytest.fixture
def folder() -> Iterator[Path]:
    listener, address = open_listener()
    with listener, make_shared_folder(address):
        yield find_shared_folder(address)
    assert not find_shared_folder(address).exists()


def test_what_one_process_has_tried_the_others_know(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    first = GrammarTrials(lambda: TOKENS, python_command("seesay.grammars.trial_child"), shared=SharedVerdicts(folder))
    broken = [sys.executable, "-c", "raise SystemExit(1)"], dict(os.environ)
    second = GrammarTrials(lambda: TOKENS, broken, shared=SharedVerdicts(folder))
    try:
        program = first.check(GOOD)
        with pytest.raises(RequestError, match="no such type") as refused:
            first.check(BAD)
        assert second.check(GOOD) == program
        with pytest.raises(RequestError) as again:
            second.check(BAD)
        assert again.value.message == refused.value.message
        with pytest.raises(RequestError, match="has ended"):  # what nobody has tried is tried
            second.check(Grammar(kind="regex", source="a"))
    finally:
        first.close()
        second.close()


def test_the_oldest_go_and_what_is_broken_is_tried_again(folder: Path) -> None:
    verdicts = SharedVerdicts(folder, max_bytes=40_000)
    for number in range(12):
        verdicts.keep(bytes([number]), ("", "x" * 100, ["a"], False))
        os.utime(folder / bytes([number]).hex(), (number, number))
    kept = [number for number in range(12) if verdicts.find(bytes([number]))]
    assert kept == list(range(3, 12))
    assert verdicts.find(bytes([11])) == ("", "x" * 100, ["a"], False)
    (folder / bytes([11]).hex()).write_bytes(b"\xff")
    assert verdicts.find(bytes([11])) is None


def test_folders_of_engines_that_are_gone_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    listener, address = open_listener()
    with listener:
        living, left, other = find_shared_folder(address), find_shared_folder("seesay-1-killed"), tmp_path / "grammars"
        for folder in (living, left, other):
            folder.mkdir()
        SharedVerdicts(left).keep(b"a", ("", "", [], False))
        with make_shared_folder("seesay-2-new"):
            assert set(tmp_path.iterdir()) == {living, other, find_shared_folder("seesay-2-new")}
    assert set(tmp_path.iterdir()) == {living, other}


def test_without_the_folder_nothing_is_kept(tmp_path: Path) -> None:
    verdicts = SharedVerdicts(tmp_path / "none")
    verdicts.keep(b"a", ("", "", [], False))
    assert verdicts.find(b"a") is None


class _LateTokens(list[bytes]):
    """Are read when the process that they are for has ended, and its thread with it."""

    threads = frozenset[threading.Thread]()

    def __iter__(self) -> Iterator[bytes]:
        wait_until(lambda: set(threading.enumerate()) <= self.threads, "the thread ends")
        return super().__iter__()


def test_a_process_that_ends_before_it_is_spoken_to_is_named() -> None:
    broken = [sys.executable, "-c", "raise SystemExit(1)"], dict(os.environ)
    tokens = _LateTokens(TOKENS)
    tokens.threads = frozenset(threading.enumerate())
    trials = GrammarTrials(lambda: tokens, broken)
    try:
        with pytest.raises(RequestError, match="has ended"):
            trials.check(GOOD)
    finally:
        trials.close()
