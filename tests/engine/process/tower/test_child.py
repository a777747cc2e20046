"""The process of a vision encoder: what it answers, and how it ends.

It is this process here, and the test is at the other end. tests/engine/test_encoder_process.py starts others.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import runpy
import signal
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from link_pair import linked, read_next

from seesay.checkpoint import resolve_checkpoint
from seesay.device import host_memory, query
from seesay.engine.core.loading import encoder_loading
from seesay.engine.process import kinds
from seesay.engine.process.link import Link, LinkClosedError
from seesay.engine.process.tower import child, tower_messages
from seesay.errors import CheckpointError, ErrorCode, RequestError

pytestmark = pytest.mark.timeout(60)

START = tower_messages.Start("folder", {}, "cpu", "float32", logging.WARNING)
PIXELS = np.arange(1 << 16, dtype=np.uint8)
"""Large enough for shared memory."""
CPU = torch.device("cpu")


class EndedError(BaseException):
    """In place of the end of the process."""


class Child:
    """This process as that of an encoder. `far` is its core's end of the link. It encodes an item as the number of its
    pixels, and raises what is `fails`."""

    device = CPU

    def __init__(self, monkeypatch: pytest.MonkeyPatch, near: Link[Any, Any], far: Link[Any, Any]) -> None:
        self.link, self.far = near, far
        self.is_confirmed = False
        self.fails: Exception | None = None
        self.arrays: list[weakref.ref[Any]] = []
        self.loaded: list[tower_messages.Start] = []
        monkeypatch.setattr(child, "Parent", self._connect)
        monkeypatch.setattr(child, "load", self._load)

    def run(self, *messages: Any) -> int:
        """Run with these messages. Returns the exit status."""
        for message in (START, *messages):
            self.far.send(message)
        return child.main()

    def read(self, number: int) -> list[Any]:
        return [read_next(self.far) for _ in range(number)]

    def confirm(self) -> None:
        self.is_confirmed = True

    def encode(self, features: Any) -> list[torch.Tensor]:
        self.arrays += [weakref.ref(each["pixels"]) for each in features]
        assert torch.is_inference_mode_enabled()
        if self.fails is not None:
            raise self.fails
        return [torch.full((1, 2), float(len(each["pixels"]))) for each in features]

    def _connect(self, *, receives: Any) -> Child:
        assert receives == tower_messages.ToTower
        return self

    def _load(self, start: tower_messages.Start) -> Child:
        assert self.is_confirmed and not gc.isenabled()
        self.loaded.append(start)
        if self.fails is not None:
            raise self.fails
        return self


def ask(*lengths: int) -> tower_messages.Encode:
    return tower_messages.Encode([{"pixels": PIXELS[:length]} for length in lengths])


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    logger = logging.getLogger("seesay")
    before = logger.handlers[:], logger.level, logger.propagate
    with linked(tower_messages.ToTower, tower_messages.FromTower) as (near, far):
        yield Child(monkeypatch, near, far)
    logger.handlers[:], logger.level, logger.propagate = before
    gc.enable()


def test_items_are_encoded_until_it_is_enough(process: Child) -> None:
    assert process.run(ask(3), ask(1 << 16, 5), tower_messages.Stop()) == 0
    hello, loaded, first, second = process.read(4)
    assert (hello, loaded) == (kinds.Hello(), tower_messages.Loaded()) and process.loaded == [START]
    assert [each[0, 0].item() for each in first.restore() + second.restore()] == [3, 1 << 16, 5]


def test_the_memory_of_pictures_is_free_when_they_are_answered(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core writes the next ones there."""
    send, alive = process.link.send, list[bool]()

    def note(message: Any) -> None:
        alive.extend(array() is not None for array in process.arrays)
        send(message)

    monkeypatch.setattr(process.link, "send", note)
    process.run(ask(1 << 16), tower_messages.Stop())
    assert alive == [False]


def test_an_item_that_fails_ends_nothing(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[torch.device] = []
    monkeypatch.setattr(query, "release_cached_memory", released.append)
    errors = iter([RequestError(ErrorCode.INVALID_MEDIA, "too large"), ValueError("odd"), MemoryError("full"), None])
    encode = process.encode

    def fail(features: Any) -> list[torch.Tensor]:
        process.fails = next(errors)
        return encode(features)

    process.encode = fail  # type: ignore[method-assign]
    assert process.run(*[ask(3)] * 4, tower_messages.Stop()) == 0
    refused, odd, full, good = process.read(6)[2:]
    assert refused.failure == kinds.Failure(ErrorCode.INVALID_MEDIA, "too large", None) and refused.raised is None
    assert (odd.raised.name, odd.raised.text, odd.failure) == ("ValueError", "odd", None)
    assert "in fail" in odd.raised.traceback
    assert (full.raised.name, full.raised.text) == ("MemoryError", "full")
    assert "in fail" not in full.raised.traceback, "its frames hold memory"
    assert released == [CPU] and good.raised is good.failure is None
    assert [each.restore() for each in (refused, odd, full)] == [[]] * 3


def test_why_a_tower_cannot_be_loaded_is_told(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has arrived when the process ends."""
    closed: list[bool] = []
    close = process.link.close

    def note(*, delivers: bool = False) -> None:
        closed.append(delivers)
        close(delivers=delivers)

    process.fails = CheckpointError("no weights")
    with monkeypatch.context() as patch:
        patch.setattr(process.link, "close", note)
        assert process.run() == 1
    failed = process.read(2)[1]
    assert (failed.name, failed.text) == ("CheckpointError", "no weights") and closed == [True]


def test_a_process_whose_core_has_gone_ends(process: Child) -> None:
    def leave(features: Any) -> list[torch.Tensor]:
        process.link.close()
        return [torch.zeros(1)]

    process.encode = leave  # type: ignore[method-assign]
    assert process.run(ask(3)) == 1
    with pytest.raises(LinkClosedError):
        process.link.send(kinds.Hello())


def test_the_first_message_says_what_to_load(process: Child) -> None:
    process.far.send(tower_messages.Stop())
    with pytest.raises(TypeError, match="must be Start, got Stop"):
        child.main()
    assert process.loaded == []


def test_records_are_sent_to_the_core(process: Child) -> None:
    process.run(tower_messages.Stop())
    logging.getLogger("seesay.part").info("too little")
    logging.getLogger("seesay.part").warning("a %s", "word")
    assert process.read(3)[2] == kinds.LogRecord("seesay.part", logging.WARNING, "a word")


def test_the_program_ends_with_the_status(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> Any:
        raise EndedError(status)

    monkeypatch.setattr(child, "exit_at_once", end)
    process.far.send(START)
    process.far.send(tower_messages.Stop())
    with pytest.raises(EndedError, match="0"):
        child.run()


def test_a_process_without_orders_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise EndedError(status)

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(os, "_exit", end)
    try:
        with pytest.raises(EndedError, match="1"):
            runpy.run_path(child.__file__, run_name="__main__")
    finally:
        signal.signal(signal.SIGINT, handler)
        gc.enable()


# --- the tower --------------------------------------------------------------------------------------------------------


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def is_visited(value: object) -> bool:
    """Whether collections of garbage visit it."""
    return any(each is value for each in gc.get_objects())


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What has been done, beginning with bounds of what allocators hold: pictures of many sizes come."""
    done: list[Any] = []
    monkeypatch.setattr(host_memory, "bound_allocators", lambda: done.append("bounded"))
    gc.disable()
    gc.unfreeze()
    yield done
    gc.unfreeze()
    gc.enable()


def make_start(device: str = "cpu") -> tower_messages.Start:
    folder = str(resolve_checkpoint("seesay-demo"))
    return tower_messages.Start(folder, {"device_type": "cpu"}, device, "bfloat16", 20)


def test_a_tower_is_loaded_as_the_core_says(bounded: list[Any]) -> None:
    """Collections do not visit it."""
    encoder = child.load(make_start())
    assert encoder.device == CPU and bounded == ["bounded"]
    assert gc.isenabled() and not is_visited(encoder)


@pytest.mark.parametrize(("device", "is_tried"), [("cpu", False), ("meta", True)])
def test_a_tower_on_a_gpu_takes_its_memory_at_once(
    bounded: list[Any], monkeypatch: pytest.MonkeyPatch, device: str, is_tried: bool
) -> None:
    """The core takes what is left for its KV cache."""
    encoder, garbage = SimpleNamespace(), list[weakref.ref[Any]]()

    def build(model: Any, config: Any, *, device: torch.device, dtype: torch.dtype) -> Any:
        assert model.checkpoint.path.is_dir() and config.device_type == "cpu" and dtype is torch.bfloat16
        assert not is_visited(sys.modules), "what was imported takes no time again"
        garbage.append(weakref.ref(Cycle()))
        bounded.append(device)
        return encoder

    monkeypatch.setattr(query, "find_device", torch.device)
    monkeypatch.setattr(encoder_loading, "build_encoder", build)
    monkeypatch.setattr(encoder_loading, "try_encoder", lambda *arguments: bounded.append(arguments))
    assert child.load(make_start(device)) is encoder
    assert bounded[:2] == ["bounded", torch.device(device)] and len(bounded) == 2 + is_tried
    assert not is_tried or (bounded[2][0] is encoder and hasattr(bounded[2][1], "build_encoder"))
    assert garbage[0]() is None, "what loading leaves is collected"
