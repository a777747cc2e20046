"""The process that compiles kernels ahead: when there is one, how long it is waited for, and what the next start knows.

The process is a script. tests/engine/test_precompile.py has those that compile.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

import seesay
from seesay.config import EngineConfig
from seesay.engine.process import precompile as module
from seesay.engine.process.precompile import Precompile
from seesay.system.python import python_command

pytestmark = pytest.mark.timeout(120)

CUDA = EngineConfig(device_type="cuda")
REPORT = {"num_kernels": 3, "seconds": 1.5}
SAY = "import sys, time; orders = sys.stdin.readline(); open({0!r}, 'w').write(orders); {1}"
"""Takes its orders, and does something then."""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(module, "has_triton", lambda: True)
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, as far as its configuration goes."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path / "model"


class Starts:
    """Starts of a model. Their processes run `script`, and `orders` are those of the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, path: Path) -> None:
        self._folder, self._path = folder, path
        self.script = "time.sleep(600)"
        self.made: list[Precompile] = []
        monkeypatch.setattr(module, "python_command", self._command)

    def start(self, config: EngineConfig = CUDA) -> Precompile:
        self.made.append(Precompile(self._folder, config))
        return self.made[-1]

    def say(self, report: object) -> None:
        """Let the next process end with a report."""
        self.script = f"print({json.dumps(report)!r}, flush=True)"

    def read_orders(self) -> Any:
        wait_until(lambda: self._path.is_file() and self._path.read_text().endswith("\n"), "it has its orders")
        return json.loads(self._path.read_text())

    def _command(self, name: str) -> tuple[list[str], dict[str, str]]:
        assert name == "seesay.engine.process.precompile_child"
        return [sys.executable, "-S", "-c", SAY.format(str(self._path), self.script)], python_command(name)[1]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, cache: Path, folder: Path, tmp_path: Path) -> Iterator[Starts]:
    starts = Starts(monkeypatch, folder, tmp_path / "orders")
    yield starts
    for each in starts.made:
        each.close()


def process_of(precompile: Precompile) -> Any:
    assert precompile.is_running
    return precompile._process


def test_a_process_compiles_for_the_model_and_its_configuration(starts: Starts, folder: Path) -> None:
    """In a session of its own, where Ctrl-C does not reach it, and without what has led to the folder."""
    started = starts.start(replace(CUDA, session_len=512, download_dir="downloads", revision="main"))
    orders = starts.read_orders()
    assert orders["folder"] == str(folder)
    assert (orders["engine"]["session_len"], orders["engine"]["device_type"]) == (512, "cuda")
    assert orders["engine"]["download_dir"] is None and orders["engine"]["revision"] is None
    pid = process_of(started).pid
    assert os.getsid(pid) == pid


def test_the_end_leaves_nothing_behind(starts: Starts) -> None:
    started = starts.start()
    process = process_of(started)
    started.close()
    started.close()
    assert process.returncode == -9 and process.stdin.closed and process.stdout.closed and not started.is_running


def without_triton(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "has_triton", lambda: False)


def interpreted(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.parametrize(
    ("hinder", "config"),
    [(without_triton, CUDA), (interpreted, CUDA), (lambda _: None, EngineConfig(device_type="cpu"))],
)
def test_where_nothing_is_compiled_there_is_no_process_and_no_note(
    monkeypatch: pytest.MonkeyPatch,
    starts: Starts,
    cache: Path,
    hinder: Callable[[pytest.MonkeyPatch], None],
    config: EngineConfig,
) -> None:
    hinder(monkeypatch)
    started = starts.start(config)
    started.wait()
    started.finish()
    assert not started.is_running and not list(cache.iterdir())


def test_what_was_compiled_is_said(starts: Starts, caplog: pytest.LogCaptureFixture) -> None:
    starts.say(REPORT)
    started = starts.start()
    process = process_of(started)
    with caplog.at_level(logging.INFO, "seesay"):
        started.wait()
        started.wait()
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert "3 kernels were compiled ahead, 1.5 s after" in record.getMessage()
    assert not started.is_running and process.returncode is not None


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("""print('{"error": "no such GPU"}', flush=True)""", "no such GPU"),
        ("pass", "precompile_child died"),
        ("time.sleep(600)", "it took longer than 0 s"),
    ],
)
def test_why_a_start_compiles_the_rest_itself_is_said(
    starts: Starts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(module, "_MAX_WAIT_S", 0.1)
    starts.script = script
    started = starts.start()
    starts.read_orders()
    started.wait()
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "compiled one by one" in record.getMessage()
    assert text in record.getMessage() and not started.is_running


def test_a_system_that_starts_no_process_costs_nothing_but_time(
    starts: Starts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "python_command", lambda name: (["/no/such/python", name], {}))
    with caplog.at_level(logging.INFO, "seesay"):
        started = starts.start()
    assert not started.is_running and "kernels are not compiled ahead" in caplog.text


# --- the note ---------------------------------------------------------------------------------------------------------


def test_the_next_start_needs_no_process(starts: Starts, cache: Path) -> None:
    """Its kernels are in the cache, where the note is."""
    first = starts.start()
    process = process_of(first)
    assert not list(cache.iterdir())
    first.finish()
    assert process.returncode is not None and not first.is_running
    [note] = cache.iterdir()
    assert note.name.startswith("seesay-") and len(note.name) == len("seesay-") + 32
    second = starts.start()
    assert not second.is_running
    second.finish()
    assert list(cache.iterdir()) == [note]


def test_a_cache_that_cannot_be_written_costs_nothing(starts: Starts, cache: Path) -> None:
    started = starts.start()
    cache.rmdir()
    started.finish()
    assert not started.is_running


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TRITON_CACHE_DIR": "/a", "TRITON_HOME": "/b"}, "/a"),
        ({"TRITON_HOME": "/b"}, "/b/.triton/cache"),
        ({"TRITON_HOME": ""}, "/c/.triton/cache"),
    ],
)
def test_the_note_is_where_triton_keeps_kernels(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/c")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert module._cache_folder() == Path(expected)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of kernels, and a GPU."""
    (tmp_path / "kernels" / "attention").mkdir(parents=True)
    for name in ("rope.py", "attention/paged.py"):
        (tmp_path / "kernels" / name).write_text("first")
    for number in (0, 1):
        (tmp_path / "gpus" / f"0000:0{number}").mkdir(parents=True)
        (tmp_path / "gpus" / f"0000:0{number}" / "information").write_text("Model: \t A\nIRQ: 1\n")
    monkeypatch.setattr(module, "_KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(module, "_GPUS", tmp_path / "gpus")
    return tmp_path / "kernels"


@pytest.mark.parametrize(
    ("name", "content", "is_same"),
    [
        ("kernels/rope.py", "other kernels", False),
        ("kernels/attention/paged.py", "other kernels", False),
        ("kernels/attention/notes.txt", "no kernels", True),
        ("gpus/0000:00/information", "Model: \t B\nIRQ: 1\n", False),
        ("gpus/0000:01/information", "Model: \t B\nIRQ: 1\n", False),
        ("gpus/0000:01/information", "Model: \t A\nIRQ: 2\n", True),
        ("model/config.json", '{"model_type": "qwen2"}', False),
        ("model/generation_config.txt", "{}", True),
        ("plugin.py", "other code", False),
    ],
)
def test_a_note_holds_for_what_determines_kernels(
    kernels: Path, folder: Path, tmp_path: Path, name: str, content: str, is_same: bool
) -> None:
    (tmp_path / "plugin.py").write_text("some code")
    engine = {"plugins": [str(tmp_path / "plugin.py"), "a.module"], "tp": 1}
    key = module._make_key(folder, engine)
    assert key == module._make_key(folder, dict(reversed(engine.items())))
    assert key != module._make_key(folder, {**engine, "session_len": 3})
    (tmp_path / name).write_text(content)
    assert (module._make_key(folder, engine) == key) is is_same


def test_the_order_of_files_does_not_matter(kernels: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file system has another one."""

    class Reversed:
        def __init__(self, path: Path) -> None:
            self._path = path

        def rglob(self, pattern: str) -> list[Path]:
            return sorted(self._path.rglob(pattern), reverse=True)

        def glob(self, pattern: str) -> list[Path]:
            return sorted(self._path.glob(pattern), reverse=True)

    (kernels.parent / "gpus" / "0000:01" / "information").write_text("Model: \t B\n")
    key = module._make_key(folder, {"plugins": []})
    for name in ("_KERNELS", "_GPUS"):
        monkeypatch.setattr(module, name, Reversed(getattr(module, name)))
        assert module._make_key(folder, {"plugins": []}) == key


def test_a_configuration_of_bytes_that_are_no_text_has_a_key(kernels: Path, folder: Path) -> None:
    """Whether a model can be read is not this module's concern."""
    (folder / "config.json").write_bytes(b"\xff\xfe")
    assert len(module._make_key(folder, {"plugins": []})) == 32


def test_all_kernels_are_in_the_folder_of_kernels() -> None:
    package = Path(seesay.__file__).parent
    others = [path for path in package.rglob("*.py") if "@triton.jit" in path.read_text()]
    assert len(others) > 20 and all(path.is_relative_to(module._KERNELS) for path in others)
