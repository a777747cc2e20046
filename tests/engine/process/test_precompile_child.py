"""The process that compiles kernels ahead: its orders, its report and its end.

It is this process here, and only notes that it would end. tests/engine/test_precompile.py has real ones.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.device import query, registry
from seesay.device.cuda import CUDA
from seesay.engine.core.loading import loading
from seesay.engine.process import precompile_child

pytestmark = pytest.mark.timeout(60)

GIB = 1 << 30
HOPPER = {"capability": [9, 0], "shared_bytes": 227 << 10}


class Process:
    """Runs `main` with orders. `said` is what its parent has read when it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reading, self._orders = os.pipe()
        self._said, writing = os.pipe()
        os.set_blocking(self._said, False)
        self.ended: SimpleQueue[tuple[int, str]] = SimpleQueue()
        stdin: Any = io.TextIOWrapper(io.BufferedReader(os.fdopen(reading, "rb", buffering=0)))
        self._stdout = os.fdopen(writing, "w")
        self._opened = [stdin, self._stdout]
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(os, "_exit", self._exit)

    def _exit(self, status: int) -> None:
        try:
            said = os.read(self._said, 1 << 16)
        except BlockingIOError:
            said = b""
        self.ended.put((status, said.decode()))

    def run(self, **orders: Any) -> Any:
        """Return the report."""
        self.write(json.dumps(orders))
        with redirect_stdout(self._stdout):
            precompile_child.main()
        status, said = self.ended.get(timeout=30)
        assert status == 0
        return json.loads(said)

    def write(self, line: str) -> None:
        os.write(self._orders, line.encode() + b"\n")

    def leave(self) -> int:
        """End the parent. Returns the status with which the process ends."""
        os.close(self._orders)
        self._orders = -1
        return self.ended.get(timeout=30)[0]

    def close(self) -> None:
        if self._orders >= 0:
            self.leave()
        for each in self._opened:
            each.close()
        os.close(self._said)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    process = Process(monkeypatch)
    yield process
    process.close()


def test_the_report_goes_out_before_the_end(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def count(*arguments: Any) -> int:
        called.append(arguments)
        return 5

    monkeypatch.setattr(precompile_child, "_compile", count)
    report = process.run(folder="a/b", engine={"tp": 2}, gpu=HOPPER)
    assert report["num_kernels"] == 5 and 0 <= report["seconds"] < 60
    assert called == [(Path("a/b"), {"tp": 2}, HOPPER)]


def test_a_failure_is_reported(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise ValueError("no compiler")

    monkeypatch.setattr(precompile_child, "_compile", fail)
    assert process.run(folder="a", engine={})["error"] == "ValueError: no compiler"


def test_the_process_ends_with_its_parent_alone(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it compiles, too: whatever else the parent may write."""
    monkeypatch.setattr(precompile_child, "_compile", lambda *_: 0)
    process.run(folder="a", engine={})
    process.write("more")
    process.write("x" * (3 << 10))
    with pytest.raises(Empty):
        process.ended.get(timeout=0.2)
    assert process.leave() == 1


def test_a_process_without_orders_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(ValueError, match="Expecting value"):
        runpy.run_path(precompile_child.__file__, run_name="__main__")


# --- kernels ----------------------------------------------------------------------------------------------------------


class Compiling:
    """Notes for which GPU a model is rehearsed. Each rehearsal launches two kernels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        absent = pytest.importorskip("seesay.kernels.absent_gpu", reason="needs Triton")
        self.gpus: list[Any] = []
        self.rehearsed: list[Any] = []
        monkeypatch.setattr(absent, "absent_gpu", self._absent_gpu)
        monkeypatch.setattr(absent.Gpu, "present", lambda index: f"GPU {index}")
        monkeypatch.setattr(loading, "rehearse", self._rehearse)

    @contextmanager
    def _absent_gpu(self, gpu: Any, executor: Any) -> Iterator[Any]:
        assert executor.submit(lambda: 3).result(30) == 3
        launches = SimpleNamespace(specializations=set())
        self.gpus.append(gpu)
        yield launches
        launches.specializations.update({1, 2} if self.rehearsed else ())

    def _rehearse(self, model: Any, config: Any) -> None:
        self.rehearsed.append((model.checkpoint.path, config))


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


FOLDER = Path(resolve_checkpoint("seesay-demo"))


def test_a_start_is_rehearsed_for_a_given_gpu(compiling: Compiling) -> None:
    assert precompile_child._compile(FOLDER, {"device_type": "cuda", "session_len": 64}, HOPPER) == 2
    assert compiling.gpus == [((9, 0), 227 << 10, None)]
    assert compiling.rehearsed == [(FOLDER, EngineConfig(device_type="cuda", session_len=64))]


@pytest.mark.parametrize(("device", "gpu"), [("cuda:1", "GPU 1"), ("cuda", "GPU 0")])
def test_kernels_are_those_of_the_gpu_of_the_configuration(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch, device: str, gpu: str
) -> None:
    monkeypatch.setattr(query, "pick_device", torch.device)
    monkeypatch.setattr(registry, "accelerator_of", lambda _: CUDA)
    assert precompile_child._compile(FOLDER, {"device_type": device}, None) == 2
    assert compiling.gpus == [gpu]


def test_there_is_nothing_to_compile_for_other_devices(compiling: Compiling) -> None:
    assert precompile_child._compile(FOLDER, {"device_type": "cpu"}, None) == 0
    assert compiling.gpus == compiling.rehearsed == []


@pytest.mark.parametrize(
    ("processors", "free_bytes", "num_threads"),
    [(3, 100 * GIB, 3), (3, 2 * GIB, 2), (3, 2 * GIB - 1, 1), (3, 0, 1), (64, 100 * GIB, 16), (1, GIB, 1)],
)
def test_there_are_threads_for_all_processors_that_have_memory(
    monkeypatch: pytest.MonkeyPatch, processors: int, free_bytes: int, num_threads: int
) -> None:
    def measure(device: torch.device) -> Any:
        assert device.type == "cpu"
        return SimpleNamespace(free_bytes=free_bytes)

    def find(pid: int) -> set[int]:
        assert pid == 0, "of this process"
        return set(range(processors))

    monkeypatch.setattr(query, "measure_memory", measure)
    monkeypatch.setattr(os, "sched_getaffinity", find, raising=False)
    assert precompile_child._count_threads() == num_threads
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert precompile_child._count_threads() == num_threads, "on systems that do not bind processes to processors"


def test_one_thread_where_the_number_of_processors_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert precompile_child._count_threads() == 1
