"""Ranks that die, hang or fail: each request ends once, the engine answers again, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faulty_engine
import pytest
from asking import parse
from pairs import mark_after
from rank_answers import LONG, PROMPTS, ask, check_lost, pid_of, read, read_unfinished, submit, wait_for_pid
from rank_processes import find_followers, is_over
from waiting import wait_until

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, ConfigError


def load(path: Path, tp: int = 2, **options: Any) -> AsyncEngine:
    parts = options.pop("core_parts", None)
    config = EngineConfig(device_type="cpu", block_size=16, tp=tp, **options)
    return AsyncEngine(str(path), backend_config=config, core_parts=parts)


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of temporary files, in which nothing is left. Shared memory has no name."""
    folder = tmp_path_factory.mktemp("tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TMPDIR", str(folder))
        yield folder
    assert not list(folder.iterdir())


@pytest.fixture(scope="module")
def engine(path: Path, folder: Path) -> Iterator[AsyncEngine]:
    assert folder.is_dir()
    names = {entry.name for entry in Path("/dev/shm").iterdir()}
    with load(path, step_timeout_s=20.0) as engine:
        yield engine
        pid = wait_for_pid(engine)
        followers = find_followers(pid)
        assert len(followers) == 1
    assert is_over(pid) and all(map(is_over, followers))
    assert {entry.name for entry in Path("/dev/shm").iterdir()} <= names


@pytest.fixture(scope="module")
def expected(engine: AsyncEngine) -> list[list[int]]:
    return ask(engine)


@pytest.mark.parametrize("seed", mark_after(1, range(6)))
def test_a_follower_is_killed_under_load(engine: AsyncEngine, expected: list[list[int]], seed: int) -> None:
    first = wait_for_pid(engine)
    [follower] = find_followers(first)
    running = submit(engine, parse(PROMPTS * 3, max_new_tokens=LONG, ignore_eos=True))
    assert running[1].get(timeout=120).finish_reason is None
    time.sleep(random.Random(seed).random() * 0.2)
    os.kill(follower, signal.SIGKILL)
    check_lost(read_unfinished(*running), "rank 1 of 2 died (signal 9)")
    assert ask(engine) == expected, "what waited for the next process is answered"
    second = wait_for_pid(engine, first)
    wait_until(lambda: is_over(first) and is_over(follower), "the processes of before have ended")
    assert find_followers(second) and not set(find_followers(second)) & {follower}


def test_a_stage_is_killed_under_load(path: Path, folder: Path) -> None:
    """Answers of stages are those of one rank, before and after."""
    with load(path, tp=1) as alone:
        expected = ask(alone)
    with load(path, tp=1, pp=2, step_timeout_s=20.0) as engine:
        assert ask(engine) == expected
        first = wait_for_pid(engine)
        [follower] = find_followers(first)
        running = submit(engine, parse(PROMPTS * 3, max_new_tokens=LONG, ignore_eos=True))
        assert running[1].get(timeout=120).finish_reason is None
        os.kill(follower, signal.SIGKILL)
        check_lost(read_unfinished(*running), "rank 1 of 2 died (signal 9)")
        assert ask(engine) == expected, "what waited for the next process is answered"
        wait_until(lambda: is_over(first) and is_over(follower), "the processes of before have ended")


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_follower_hangs(path: Path, folder: Path, expected: list[list[int]], is_idle: bool) -> None:
    with load(path, step_timeout_s=3.0) as engine:
        first = wait_for_pid(engine)
        [follower] = find_followers(first)
        os.kill(follower, signal.SIGSTOP)
        if not is_idle:
            check_lost(read(*submit(engine, parse(PROMPTS, max_new_tokens=LONG))), "hangs", "said nothing")
        wait_until(lambda: is_over(first) and is_over(follower), "the processes are ended")
        wait_until(lambda: pid_of(engine) != first, "the end of the process is noticed")
        assert ask(engine) == expected, "what waited for the next process is answered"


def test_the_engine_process_is_killed(engine: AsyncEngine, expected: list[list[int]]) -> None:
    first = wait_for_pid(engine)
    [follower] = find_followers(first)
    running = submit(engine, parse(PROMPTS, max_new_tokens=LONG, ignore_eos=True))
    assert running[1].get(timeout=120).finish_reason is None
    os.kill(first, signal.SIGKILL)
    check_lost(read_unfinished(*running), "the engine process died (signal 9)")
    wait_until(lambda: is_over(follower), "the follower ends with it")
    assert ask(engine) == expected


def test_a_step_that_fails_on_one_rank_ends_all(
    path: Path, folder: Path, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have begun it already, and would wait for ever."""
    monkeypatch.setenv(faulty_engine.FOLDER, str(tmp_path))
    with load(path, core_parts=faulty_engine.PARTS) as engine:
        first = wait_for_pid(engine)
        (tmp_path / "lost").touch()
        check_lost(read(*submit(engine, parse(PROMPTS, max_new_tokens=LONG))), "rank 0 of 2 failed in a step")
        (tmp_path / "lost").unlink()
        assert ask(engine) == expected
        assert wait_for_pid(engine) != first


def test_closing_ends_what_runs(path: Path, folder: Path) -> None:
    engine = load(path)
    pid = wait_for_pid(engine)
    followers = find_followers(pid)
    running = submit(engine, parse(PROMPTS, max_new_tokens=LONG, ignore_eos=True))
    running[1].get(timeout=120)
    engine.close()
    for one in read(*running):
        assert one.error is not None or one.finish_reason == "length", one
    assert is_over(pid) and all(map(is_over, followers)) and len(followers) == 1


def test_a_number_of_ranks_that_does_not_divide_is_refused(path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="tp=3"):
        load(path, tp=3)


def test_more_memory_than_there_is(path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="num_gpu_blocks=99999999"):
        load(path, num_gpu_blocks=99_999_999)


def test_a_folder_without_weights(path: Path, folder: Path, tmp_path: Path) -> None:
    for file in path.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError):
        load(tmp_path)
