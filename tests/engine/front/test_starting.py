"""How the core of an engine is started, and what a frontend imports before it answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seesay.config import EngineConfig, SpeculativeConfig, VisionConfig
from seesay.engine.core.loading import loading
from seesay.engine.front import starting
from seesay.engine.front.starting import CoreParts, CoreStart, uses_process
from seesay.engine.process.remote_core import ProcessCore
from seesay.engine.process.tower.remote_encoder import open_remote_encoder
from seesay.errors import ConfigError


@pytest.mark.parametrize(
    ("modalities", "device_type", "is_imported"),
    [(("image",), "cpu", True), ((), "cpu", False), (("image",), "cuda", False)],
)
def test_torch_is_imported_before_the_first_picture(
    modalities: tuple[str, ...], device_type: str, is_imported: bool
) -> None:
    """In a thread of a server, the import would hold up all streams."""
    code = (
        "import sys, types; from seesay.engine.front.starting import import_for_media; had = 'torch' in sys.modules; "
        f"import_for_media(types.SimpleNamespace(modalities={modalities}), {device_type!r}); "
        "print(had, 'torch.nn.functional' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout
    assert shown.split() == ["False", str(is_imported)]


@pytest.mark.parametrize(
    ("options", "has_process"),
    [
        ({"device_type": "cpu"}, False),
        ({"device_type": "cpu", "engine_process": True}, True),
        ({"device_type": "cpu", "tp": 2}, True),
        ({"device_type": "cpu", "pp": 2}, True),
        ({"device_type": "cuda"}, True),
        ({"device_type": "cuda", "engine_process": False}, False),
    ],
)
def test_where_a_core_runs(options: dict[str, Any], has_process: bool) -> None:
    """Beside a GPU it never waits for the GIL, and several ranks are processes anyhow."""
    assert uses_process(EngineConfig(**options)) is has_process


# --- starts -----------------------------------------------------------------------------------------------------------

CPU = EngineConfig(device_type="cpu", step_timeout_s=7.0)
OWN = EngineConfig(device_type="cpu", step_timeout_s=7.0, engine_process=True)


class Noted:
    """Notes what is started in place of a core. It is a `ProcessCore` and a `Precompile`, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[Any] = []
        monkeypatch.setattr(ProcessCore, "load", self._note("load"))
        monkeypatch.setattr(ProcessCore, "join", self._note("join"))
        monkeypatch.setattr(starting, "Precompile", self._note("precompile"))
        monkeypatch.setattr(loading, "load_core", self._note("core"))

    def wait(self) -> None:
        """Wait for the kernels."""

    def wait_until_loaded(self) -> str:
        return "the process"

    def finish(self) -> None:
        self.done.append("kernels are noted")

    def close(self) -> None:
        self.done.append("closed")

    def _note(self, name: str) -> Any:
        def note(*arguments: Any, **options: Any) -> Any:
            self.done.append((name, arguments, options))
            return self

        return note


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


FOLDER, VISION, MODEL = Path("folder"), VisionConfig(max_batch_size=3), "model"


def start(config: EngineConfig, vision: VisionConfig = VISION, **options: Any) -> Any:
    return CoreStart(FOLDER, config, vision, **{"parts": CoreParts(), **options})


@pytest.mark.parametrize("own_process", [False, True])
def test_a_core_of_this_process_is_loaded_at_the_end(noted: Noted, own_process: bool) -> None:
    """Its kernels are compiled meanwhile, and its tower may have a process all the same."""
    make_runner: Any = object()
    vision = VisionConfig(own_process=own_process)
    started = start(CPU, vision, parts=CoreParts(make_runner=make_runner))
    assert noted.done == [("precompile", (FOLDER, CPU), {})]
    assert started.finish(MODEL) is noted
    options = {
        "wait_for_kernels": noted.wait,
        "make_runner": make_runner,
        "open_remote": open_remote_encoder if own_process else None,
    }
    assert noted.done[1:] == [("core", (MODEL, CPU, vision), options), "kernels are noted"]


def test_a_process_is_started_with_what_it_finds_elsewhere(
    noted: Noted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be started again when the working directory is another one. Names of the hub stay."""
    monkeypatch.chdir(tmp_path)
    for name in ("adapter", "draft"):
        (tmp_path / name).mkdir()
    make_origin: Any = object()
    config = EngineConfig(
        device_type="cpu", engine_process=True, step_timeout_s=7.0, download_dir="downloads", revision="main",
        adapters={"a": "adapter", "b": "who/what"}, speculative=SpeculativeConfig(method="draft", model="draft"),
    )  # fmt: skip
    started = start(config, parts=CoreParts(make_origin=make_origin))
    [(name, (folder, engine, vision), options)] = noted.done
    assert (name, folder) == ("load", FOLDER) and vision["max_batch_size"] == 3
    assert options == {"step_timeout_s": 7.0, "make_origin": make_origin}
    assert engine["download_dir"] is None and engine["revision"] is None
    assert engine["adapters"] == {"a": str(tmp_path / "adapter"), "b": "who/what"}
    assert engine["speculative"]["model"] == str(tmp_path / "draft")
    assert started.finish(MODEL) == "the process"


@pytest.mark.parametrize("speculative", [None, SpeculativeConfig(method="ngram")])
def test_a_process_may_have_no_adapters_and_no_draft(noted: Noted, speculative: SpeculativeConfig | None) -> None:
    start(EngineConfig(device_type="cpu", engine_process=True, speculative=speculative))
    [(_, (_, engine, _), _)] = noted.done
    assert not engine["adapters"]
    assert engine["speculative"] is None or engine["speculative"]["method"] == "ngram"


@pytest.mark.parametrize("config", [CPU, OWN])
def test_the_process_of_another_frontend_is_joined(noted: Noted, config: EngineConfig) -> None:
    read_status: Any = object()
    started = start(config, address="address", read_status=read_status)
    assert noted.done == [("join", ("address",), {"read_status": read_status, "step_timeout_s": 7.0})]
    assert started.finish(MODEL) == "the process"


@pytest.mark.parametrize("config", [CPU, OWN])
def test_what_was_started_is_ended_where_the_rest_fails(noted: Noted, config: EngineConfig) -> None:
    started = start(config)
    noted.done.clear()
    started.cancel()
    assert noted.done == ["closed"]


def test_a_process_needs_packages(noted: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seesay.engine.process.remote_core", None)
    with pytest.raises(ConfigError, match="engine_process=True: needs the packages msgspec and pyzmq"):
        start(OWN)
