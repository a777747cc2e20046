"""Adapters that are loaded and unloaded while an engine answers."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapter_folders import write_adapter, write_folder
from leftovers import end_renderers, list_children, list_files, wait_until_no_more
from pairs import mark_after
from waiting import wait_until

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.device.transfers import PinnedMemory
from seesay.errors import CheckpointError, RequestError

TEXTS = ["the game is in the frame", "what is it? the thing of the other", "go on"]
OPTIONS = GenerationConfig(max_new_tokens=8, ignore_eos=True, temperature=0.0)
LONG = GenerationConfig(max_new_tokens=1500, ignore_eos=True, temperature=0.0)
ALL = r".*(self_attn|mlp)\.\w+_proj"
NAMES = "abcd"
MOST_MB = 64
"""By which a process may grow after the first rounds."""


def load(path: Path, **options: Any) -> Pipeline:
    config = {"device_type": "cpu", "block_size": 4, "session_len": 2048, "max_adapters": 2, **options}
    return pipeline(str(path), EngineConfig(**config))


def ask(pipe: Pipeline, name: str | None) -> list[list[int]]:
    answers = pipe(TEXTS, OPTIONS, adapter_name=name)
    assert all(answer.finish_reason == "length" for answer in answers), answers
    return [answer.token_ids for answer in answers]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(checkpoint, root / name, ALL, seed=i) for i, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def expected(checkpoint: Path, folders: dict[str, Path]) -> Mapping[str | None, list[list[int]]]:
    """The answers of an engine that had all adapters from its start."""
    adapters = {name: str(folder) for name, folder in folders.items()}
    with load(checkpoint, adapters=adapters, max_adapters=0) as pipe:
        found: dict[str | None, list[list[int]]] = {name: ask(pipe, name) for name in (None, *NAMES)}
    assert len({str(answers) for answers in found.values()}) == len(found)
    return found


@pytest.fixture(
    scope="module",
    params=[{}, {"engine_process": True}, {"tp": 2}],
    ids=["here", "process", "ranks"],
)
def pipe(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Pipeline]:
    with load(checkpoint, **request.param) as pipe:
        yield pipe


def test_they_come_and_go(
    pipe: Pipeline, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]]
) -> None:
    """More than there are slots; the base model and the others answer as before."""
    for name in "abc":
        pipe.load_adapter(name, folders[name])
    assert list(pipe.engine.adapter_names) == ["a", "b", "c"]
    names: tuple[str | None, ...] = ("a", None, "b", "c", "a")
    assert [ask(pipe, name) for name in names] == [expected[name] for name in names]
    with pytest.raises(RequestError, match="'a' is loaded already"):
        pipe.load_adapter("a", folders["d"])
    for name in "abc":
        pipe.unload_adapter(name)
    assert not list(pipe.engine.adapter_names)
    answer = pipe(TEXTS[0], adapter_name="a")
    assert answer.finish_reason == "error" and "'a' is not loaded" in answer.text
    with pytest.raises(RequestError, match="'a' is not loaded: none is"):
        pipe.unload_adapter("a")
    assert ask(pipe, None) == expected[None]


def test_a_name_with_other_content_shares_no_cache(
    pipe: Pipeline, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]]
) -> None:
    for name in ("a", "b", "a"):
        pipe.load_adapter("own", folders[name])
        assert ask(pipe, "own") == expected[name], name
        pipe.unload_adapter("own")


def test_two_names_of_one_content_are_forgotten_with_the_second(
    pipe: Pipeline, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]]
) -> None:
    pipe.load_adapter("first", folders["a"])
    pipe.load_adapter("second", folders["a"])
    pipe.unload_adapter("first")
    assert ask(pipe, "second") == expected["a"]
    pipe.unload_adapter("second")


@pytest.mark.parametrize("running", ["finish", "abort"])
def test_unloading_waits_for_its_requests_or_aborts_them(
    pipe: Pipeline, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]], running: Any
) -> None:
    pipe.load_adapter("a", folders["a"])
    pipe.load_adapter("b", folders["b"])
    long = replace(LONG, max_new_tokens=600) if pipe.engine.config.tp > 1 else LONG  # ranks take longer for a token
    begun = {name: threading.Event() for name in "ab"}
    ends: dict[str, tuple[int, Any]] = {}

    def stream(name: str) -> None:
        num_tokens, reason = 0, None
        for piece in pipe.stream_infer(TEXTS[0], gen_config=long, adapter_name=name):
            num_tokens, reason = num_tokens + len(piece.token_ids), piece.finish_reason
            begun[name].set()
        ends[name] = num_tokens, reason

    with ThreadPoolExecutor() as threads:
        streams = [threads.submit(stream, name) for name in "ab"]
        assert all(each.wait(120) for each in begun.values())
        pipe.unload_adapter("a", running=running)
        assert pipe.engine.adapter_names == ("b",)
        for each in streams:
            each.result(300)
    assert ends["b"] == (long.max_new_tokens, "length"), "another one's stream goes on"
    if running == "finish":
        assert ends["a"] == (long.max_new_tokens, "length")
    else:
        assert ends["a"][0] < long.max_new_tokens and ends["a"][1] == "abort"
    pipe.unload_adapter("b")
    pipe.load_adapter("a", folders["a"])
    assert ask(pipe, "a") == expected["a"]
    pipe.unload_adapter("a")


def test_sleep_frees_the_slots(
    pipe: Pipeline, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]]
) -> None:
    """They are filled again, but for those whose adapters were unloaded meanwhile."""
    core: Any = pipe.engine.core
    for name in "ab":
        pipe.load_adapter(name, folders[name])
        assert ask(pipe, name) == expected[name]
    for level in (1, 2):
        pipe.sleep(level)
        if hasattr(core, "_runner"):
            assert core._runner.adapters._slots.untyped_storage().nbytes() == 0
        pipe.unload_adapter("b")
        pipe.load_adapter("b", folders["bc"[level - 1]])
        pipe.wake_up(["kv_cache"])
        pipe.wake_up(["weights"])
        assert ask(pipe, "b") == expected["bc"[level - 1]]
        assert ask(pipe, "a") == expected["a"] and ask(pipe, None) == expected[None]
    for name in "ab":
        pipe.unload_adapter(name)


def test_what_cannot_be_loaded_changes_nothing(pipe: Pipeline, folders: dict[str, Path], tmp_path: Path) -> None:
    import torch

    pipe.load_adapter("a", folders["a"])
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    bad = {f"{name}.lora_A.weight": torch.ones(4, 32), f"{name}.lora_B.weight": torch.ones(64, 4)}
    write_folder(tmp_path / "small", bad)
    write_folder(tmp_path / "nan", {key: tensor * float("nan") for key, tensor in bad.items()})
    for folder, message in (("small", "32 inputs and 64 outputs"), ("nan", "not finite"), ("none", "no such folder")):
        with pytest.raises(CheckpointError, match=message):
            pipe.load_adapter("bad", tmp_path / folder)
    assert pipe.engine.adapter_names == ("a",)
    pipe.unload_adapter("a")


def test_an_engine_without_slots_says_which_option_makes_some(checkpoint: Path, folders: dict[str, Path]) -> None:
    with load(checkpoint, max_adapters=0) as pipe, pytest.raises(RequestError, match="start it with max_adapters"):
        pipe.load_adapter("a", folders["a"])


def test_an_engine_that_is_started_again_has_what_was_loaded(
    checkpoint: Path, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]]
) -> None:
    with load(checkpoint, engine_process=True, adapters={"a": str(folders["a"])}) as pipe:
        pipe.load_adapter("b", folders["b"])
        pipe.unload_adapter("a")
        core: Any = pipe.engine.core
        first = core.pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: core.pid not in (None, first))
        assert pipe.engine.adapter_names == ("b",)
        assert ask(pipe, "b") == expected["b"]


@pytest.mark.parametrize("rounds", mark_after(1, [20, 500]))
def test_loading_and_unloading_under_load(
    checkpoint: Path, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]], rounds: int
) -> None:
    """Nobody else's answer changes, and nothing is left behind."""
    with load(checkpoint, adapters={"a": str(folders["a"]), "b": str(folders["b"])}, num_gpu_blocks=64) as pipe:
        core: Any = pipe.engine.core
        is_over = threading.Event()
        pipe.load_adapter("new", folders["c"])
        pipe.unload_adapter("new")
        end_renderers()
        memories, files, children = count_memories(), list_files(), list_children()
        rss_mb = [read_rss_mb()]

        def keep_asking(name: str | None) -> int:
            count = 0
            while not is_over.is_set() or not count:
                assert ask(pipe, name) == expected[name], name
                count += 1
            return count

        with ThreadPoolExecutor() as threads:
            others = [threads.submit(keep_asking, name) for name in (None, "a", "b")]
            try:
                for index in range(rounds):
                    name = "cd"[index % 2]
                    pipe.load_adapter("new", folders[name])
                    if index % 3:
                        assert pipe(TEXTS[1], OPTIONS, adapter_name="new").token_ids == expected[name][1]
                    pipe.unload_adapter("new", running="abort" if index % 2 else "finish")
                    if index % 50 == 49:
                        rss_mb.append(read_rss_mb())
            finally:
                is_over.set()
            assert all(each.result(120) for each in others)
        gc.collect()
        adapters = core._runner.adapters
        assert len(adapters._adapters) == 2 and len(core.adapters.loaded) == 2
        slots = core._scheduler._live.adapters
        assert not slots._num_users and slots._waiting.check_integrity(set()) == {}.keys()
        assert len(slots._slot_of) + len(slots._free) == 2 and slots._slot_of.keys() <= adapters._adapters.keys()
        assert count_memories() == memories, "host memory of adapters that are gone"
        end_renderers()
        wait_until_no_more(list_files, files)
        assert list_children() <= children
        print(f"{rounds} rounds, MB of this process now and then: {rss_mb}")
        assert rss_mb[-1] - rss_mb[min(1, len(rss_mb) - 1)] < MOST_MB, rss_mb


def count_memories() -> int:
    gc.collect()
    return sum(isinstance(each, PinnedMemory) for each in gc.get_objects())


def read_rss_mb() -> int:
    return int(re.findall(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())[0]) >> 10
