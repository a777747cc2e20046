"""The engine process: what it loads, whom it tells why it cannot, and the status with which it ends.

It is this process here: its link is real, and the test is at the other end. tests/engine/test_process.py starts others.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import runpy
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from link_pair import linked, read_next

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig, VisionConfig
from seesay.engine.commands import ModelStatus
from seesay.engine.core.loading import loading
from seesay.engine.process import child, kinds, precompile, service
from seesay.engine.process.link import Link, LinkClosedError
from seesay.engine.process.ranks import leading
from seesay.engine.process.tower.remote_encoder import open_remote_encoder
from seesay.errors import CheckpointError

pytestmark = pytest.mark.timeout(120)

CPU = {"device_type": "cpu", "session_len": 64, "cache_max_entry_count": 0.01}
STATUS = ModelStatus(folders=("new weights",), adapters=())


class EndedError(BaseException):
    """In place of the end of the process."""


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def is_visited(value: object) -> bool:
    """Whether collections of garbage visit it."""
    return any(each is value for each in gc.get_objects())


class Child:
    """This process as an engine process. `far` is its parent's end of the link."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, near: Link[Any, Any], far: Link[Any, Any]) -> None:
        self.link, self.far = near, far
        self.descriptors: list[int] = []
        self.is_confirmed = False
        self.done: list[Any] = []
        self.is_told, self.core, self.followers = True, object(), SimpleNamespace(close=self._close)
        self.error: Exception | None = None
        monkeypatch.setattr(child, "Parent", self._connect)
        monkeypatch.setattr(child, "exit_at_once", self._exit)
        self._monkeypatch = monkeypatch

    def script(self) -> None:
        """Load and serve nothing, but note it."""
        self._monkeypatch.setattr(child, "_load", self._load)
        self._monkeypatch.setattr(leading, "start_followers", self._start_followers)
        self._monkeypatch.setattr(service, "Service", self._serve)

    def run(self, **engine: Any) -> int:
        """Run with a configuration. Returns the exit status."""
        self.far.send(kinds.Start("folder", engine, {}, logging.WARNING, 2.5))
        return child.main()

    def confirm(self) -> None:
        self.is_confirmed = True

    def _connect(self, *, receives: Any) -> Child:
        assert receives is kinds.ToCore
        return self

    def _exit(self, status: int) -> Any:
        raise EndedError(status)

    def _close(self) -> None:
        self.done.append("followers are closed")

    def _start_followers(self, start: kinds.Start, size: int, *, lose: Any) -> Any:
        self.done.append(("followers of", start.folder, size))
        return self.followers

    def _load(self, start: kinds.Start, followers: Any) -> Any:
        assert self.is_confirmed and not gc.isenabled() and sys.getswitchinterval() == pytest.approx(1e-4)
        self.done.append((start.folder, followers))
        if self.error is not None:
            raise self.error
        return self.core

    def _serve(self, link: Any, core: Any, listener: Any, *, beat_s: float) -> Any:
        def run() -> bool:
            name = None if listener is None else listener.getsockname()
            self.done.append(("serve", link is self.link and core is self.core, name, beat_s))
            if listener is not None:
                listener.close()
            return self.is_told

        return SimpleNamespace(run=run)


SERVED = "serve", True, None, 2.5


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    logger, interval_s = logging.getLogger("seesay"), sys.getswitchinterval()
    before = logger.handlers[:], logger.level, logger.propagate
    with linked(kinds.ToCore, kinds.ToFrontend) as (near, far):
        yield Child(monkeypatch, near, far)
    logger.handlers[:], logger.level, logger.propagate = before
    sys.setswitchinterval(interval_s)
    gc.enable()


@pytest.mark.parametrize(("is_told", "status"), [(True, 0), (False, 1)])
def test_a_process_that_is_told_to_end_ends_well(process: Child, is_told: bool, status: int) -> None:
    """Its parent starts another one in place of one that gave up."""
    process.script()
    process.is_told = is_told
    assert process.run() == status
    assert read_next(process.far) == kinds.Hello()
    assert process.done == [("folder", None), SERVED]


@pytest.mark.parametrize(
    ("engine", "size"), [({"tp": 2}, 2), ({"pp": 2}, 2), ({"tp": 2, "pp": 3}, 6), ({"tp": 1, "pp": 1}, 1), ({}, 1)]
)
def test_several_ranks_are_started_and_ended(process: Child, engine: dict[str, int], size: int) -> None:
    process.script()
    assert process.run(**engine) == 0
    several: list[Any] = [
        ("followers of", "folder", size),
        ("folder", process.followers),
        SERVED,
        "followers are closed",
    ]
    assert process.done == (several if size > 1 else [("folder", None), SERVED])


def test_frontends_connect_to_the_socket_that_was_handed_on(process: Child) -> None:
    process.script()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        process.descriptors = [os.dup(listener.fileno())]
        assert process.run() == 0
        assert process.done[-1] == ("serve", True, listener.getsockname(), 2.5)


def test_records_are_sent_to_the_parent(process: Child) -> None:
    process.script()
    process.run()
    logging.getLogger("seesay.part").info("too little")
    logging.getLogger("seesay.part").warning("a %s", "word")
    assert [read_next(process.far) for _ in range(2)][1] == kinds.LogRecord("seesay.part", logging.WARNING, "a word")


def test_why_a_model_cannot_be_loaded_is_told(process: Child) -> None:
    process.script()
    process.error = CheckpointError("no weights")
    with pytest.raises(EndedError, match="1"):
        process.run()
    told = [read_next(process.far) for _ in range(2)][1]
    assert isinstance(told, kinds.StartFailed) and (told.name, told.text) == ("CheckpointError", "no weights")
    assert process.done == [("folder", None)]


def test_the_first_message_says_what_to_load(process: Child) -> None:
    process.script()
    process.far.send(kinds.Stop())
    with pytest.raises(TypeError, match="must be Start, got Stop"):
        child.main()
    assert process.done == []


def test_the_program_ends_with_the_status(process: Child) -> None:
    process.script()
    process.is_told = False
    process.far.send(kinds.Start("folder", {}, {}, logging.WARNING, 2.5))
    with pytest.raises(EndedError, match="1"):
        child.run()


def test_a_process_without_orders_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent has gone."""

    def end(status: int) -> None:
        raise EndedError(status)

    handler, interval_s = signal.getsignal(signal.SIGINT), sys.getswitchinterval()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(os, "_exit", end)
    try:
        with pytest.raises(EndedError, match="1"):
            runpy.run_path(child.__file__, run_name="__main__")
    finally:
        signal.signal(signal.SIGINT, handler)
        sys.setswitchinterval(interval_s)
        gc.enable()


# --- failures ---------------------------------------------------------------------------------------------------------


def test_the_first_failure_is_told_before_the_end(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's, which comes a moment later, waits for the end of the process."""
    done: list[Any] = []
    monkeypatch.setattr(process.link, "flush", done.append)
    monkeypatch.setattr(child, "exit_at_once", done.append)
    failure: Any = child._Failure(process.link)  # here it returns
    failure.tell(ValueError("first"))
    assert done == [2.0, 1] and read_next(process.far).text == "first"
    second = threading.Thread(target=failure.tell, args=(ValueError("second"),))
    second.start()
    assert not process.far.wait(0.3) and done == [2.0, 1]
    failure._lock.release()
    second.join(60)
    assert not second.is_alive() and read_next(process.far).text == "second"


def test_a_process_ends_whose_parent_cannot_be_told(process: Child) -> None:
    process.link.close()
    with pytest.raises(LinkClosedError):
        process.link.send(kinds.Hello())
    with pytest.raises(EndedError, match="1"):
        child._Failure(process.link).tell(ValueError("a bug"))


# --- the model --------------------------------------------------------------------------------------------------------


class Loading:
    """Notes how a core is loaded. It has parts that note what is done again, if `has_control`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        self.has_control = self.visits_modules = True
        self.error: Exception | None = None
        self.garbage: list[weakref.ref[Any]] = []
        monkeypatch.setattr(precompile, "Precompile", self._precompile)
        monkeypatch.setattr(loading, "load_core", self._load)
        monkeypatch.setattr(leading, "watch", self._watch)

    def wait(self) -> None:
        """Wait for the kernels."""

    def finish(self) -> None:
        self.calls.append("kernels are noted")

    def close(self) -> None:
        self.calls.append("kernels are ended")

    def _precompile(self, folder: Path, config: EngineConfig) -> Loading:
        assert folder.is_dir() and isinstance(config, EngineConfig)
        return self

    def _load(self, model: Any, config: Any, vision_config: Any, **parts: Any) -> Any:
        self.calls.append(parts)
        self.visits_modules = is_visited(sys.modules)
        assert model.checkpoint.path.is_dir() and isinstance(config, EngineConfig)
        assert isinstance(vision_config, VisionConfig)
        if self.error is not None:
            raise self.error

        def note(name: str) -> Any:
            return SimpleNamespace(replay=lambda value: self.calls.append((name, value)))

        control = note("weights") if self.has_control else None
        return SimpleNamespace(control=control, adapters=note("adapters"), facts=SimpleNamespace(device="cpu"))

    def _watch(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        self.garbage.append(weakref.ref(Cycle()))


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch, process: Child) -> Loading:
    return Loading(monkeypatch)


def make_start(status: ModelStatus = ModelStatus(), **vision: Any) -> kinds.Start:  # noqa: B008
    return kinds.Start(str(resolve_checkpoint("seesay-demo")), dict(CPU), vision, 20, 1.5, status)


def test_a_core_is_watched_and_waits_for_kernels(noted: Loading) -> None:
    child._load(make_start())
    assert noted.calls == [
        {"is_watched": True, "wait_for_kernels": noted.wait, "join_ranks": None, "open_remote": None},
        "kernels are noted",
        "kernels are ended",
    ]


def test_a_tower_may_have_its_own_process(noted: Loading) -> None:
    child._load(make_start(own_process=True))
    assert noted.calls[0]["open_remote"] is open_remote_encoder


def test_kernels_are_not_noted_where_loading_fails(noted: Loading) -> None:
    noted.error = CheckpointError("no weights")
    with pytest.raises(CheckpointError):
        child._load(make_start())
    assert noted.calls[1:] == ["kernels are ended"]


def test_followers_are_met_and_watched_once_all_is_loaded(noted: Loading) -> None:
    followers: Any = object()
    child._load(make_start(), followers)
    join = noted.calls[0]["join_ranks"]
    assert isinstance(join, leading.Joining) and join._followers is followers
    assert noted.calls[-1] == (followers, join._config, "cpu", 1.5) and isinstance(join._config, EngineConfig)
    assert [found() for found in noted.garbage] == [None], "what loading leaves is collected"


@pytest.mark.parametrize(
    ("status", "has_control", "replayed"),
    [
        (STATUS, True, [("weights", STATUS), ("adapters", STATUS.adapters)]),
        (STATUS, False, []),
        (ModelStatus(), True, []),
        (ModelStatus(), False, []),
    ],
)
def test_weights_of_the_process_before_are_loaded_again(
    noted: Loading, status: ModelStatus, has_control: bool, replayed: list[Any]
) -> None:
    noted.has_control = has_control
    child._load(make_start(status))
    assert noted.calls[3:] == replayed


def test_collections_do_not_visit_a_loaded_model(process: Child) -> None:
    """One that visits it stops steps for 0.1 s."""
    listener: Any = SimpleNamespace(on_features_wanted=None, on_encoding=None)
    gc.disable()
    core = child._load(make_start())
    try:
        assert gc.isenabled() and not is_visited(core)
        assert core.facts.device == "cpu"
    finally:
        gc.unfreeze()
        core.start(listener)
        core.close()


def test_the_collection_of_a_load_does_not_visit_what_was_imported(noted: Loading) -> None:
    """That would take 0.15 s of a start."""
    gc.unfreeze()
    assert is_visited(sys.modules)
    child._load(make_start())
    assert not noted.visits_modules
    gc.unfreeze()
