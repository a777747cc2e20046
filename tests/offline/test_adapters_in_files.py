"""More adapters than host memory takes: those that nobody uses are read from their files again."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from adapter_folders import write_adapter

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.errors import ConfigError

TEXTS = ["the game is in the frame", "what is it? the thing of the other", "go on"]
OPTIONS = GenerationConfig(max_new_tokens=8, ignore_eos=True, temperature=0.0)
LONG = GenerationConfig(max_new_tokens=400, ignore_eos=True, temperature=0.0)
ALL = r".*(self_attn|mlp)\.\w+_proj"
NAMES = "abcd"


def load(path: Path, folders: Mapping[str, Path], **options: Any) -> Pipeline:
    adapters = {name: str(folder) for name, folder in folders.items()}
    config = {"device_type": "cpu", "block_size": 4, "session_len": 512, "adapters": adapters, **options}
    return pipeline(str(path), EngineConfig(**config))


def ask(pipe: Pipeline, names: Any, texts: list[str] = TEXTS) -> list[list[int]]:
    answers = pipe(texts, OPTIONS, adapter_name=names)
    assert all(answer.finish_reason == "length" for answer in answers), answers
    return [answer.token_ids for answer in answers]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(checkpoint, root / name, ALL, seed=seed, use_dora=name == "b")
        for seed, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def expected(checkpoint: Path, folders: dict[str, Path]) -> Mapping[str | None, list[list[int]]]:
    with load(checkpoint, folders) as pipe:
        found = {name: ask(pipe, name) for name in (None, *NAMES)}
    assert len({str(answers) for answers in found.values()}) == len(found)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"max_cpu_adapters": 1},
        {"max_cpu_adapters": 3, "max_adapters": 2, "engine_process": True},
        {"max_cpu_adapters": 2, "tp": 2},
    ],
    ids=["here", "process", "ranks"],
)
def test_answers_are_those_of_an_engine_with_all_in_memory(
    options: dict[str, Any],
    checkpoint: Path,
    folders: dict[str, Path],
    expected: Mapping[str | None, list[list[int]]],
) -> None:
    """One after another, and all in one call, with others that end meanwhile and one that is loaded by name."""
    with load(checkpoint, {name: folders[name] for name in "abc"}, **options) as pipe:
        for name in "abcab":
            assert ask(pipe, name) == expected[name], name
        pipe.load_adapter("d", folders["d"])
        names = [name for _ in range(2) for name in expected for _ in TEXTS]
        found = ask(pipe, names, TEXTS * len(expected) * 2)
        assert found == [answer for name in expected for answer in expected[name]] * 2


def test_others_go_on_while_one_waits(
    checkpoint: Path, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]]
) -> None:
    """A stream of another adapter has the memory; the base model is asked meanwhile. An adapter that is unloaded while
    requests wait for it answers them first."""
    with load(checkpoint, folders, max_cpu_adapters=1) as pipe, ThreadPoolExecutor() as threads:
        begun = threading.Event()

        def stream() -> int:
            count = 0
            for piece in pipe.stream_infer(TEXTS[0], gen_config=LONG, adapter_name="a"):
                count += len(piece.token_ids)
                begun.set()
            return count

        streaming = threads.submit(stream)
        assert begun.wait(60)
        waiting = threads.submit(ask, pipe, "b")
        assert ask(pipe, None) == expected[None]
        pipe.unload_adapter("b")
        assert waiting.result(60) == expected["b"]
        assert streaming.result(60) == 400


def test_a_file_that_was_changed_or_lost_is_an_error_of_its_requests(
    checkpoint: Path, folders: dict[str, Path], expected: Mapping[str | None, list[list[int]]], tmp_path: Path
) -> None:
    own = {name: tmp_path / name for name in "ab"}
    for name, folder in own.items():
        shutil.copytree(folders[name], folder)
    with load(checkpoint, own, max_cpu_adapters=1) as pipe:
        assert ask(pipe, "a") == expected["a"]
        shutil.copytree(folders["c"], own["b"], dirs_exist_ok=True)
        answer = pipe(TEXTS[0], OPTIONS, adapter_name="b")
        assert answer.finish_reason == "error" and "was changed since it was loaded" in answer.text
        shutil.rmtree(own["b"])
        answer = pipe(TEXTS[0], OPTIONS, adapter_name="b")
        assert answer.finish_reason == "error" and "adapter_config.json" in answer.text
        shutil.copytree(folders["b"], own["b"])
        assert ask(pipe, ["b", "a"], TEXTS[:2]) == [expected["b"][0], expected["a"][1]]


def test_memory_for_fewer_than_there_are_slots_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_cpu_adapters must be 0 or at least max_adapters=4"):
        EngineConfig(max_adapters=4, max_cpu_adapters=3)
