"""What the tests of new weights and of sleep share: engines, their answers, and how they die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from asking import make_picture
from enrolment import FAMILIES
from other_weights import copy_with_other_weights

from seesay import GenerationConfig
from seesay.config import EngineConfig
from seesay.engine.process.remote_core import ProcessCore
from seesay.errors import ErrorCode, RequestError
from seesay.offline.pipeline import Pipeline

PREFIX = "the game is in the frame, " * 8
NAME = "qwen2_5_vl"


def load(path: Path, *, own: bool = False, **options: Any) -> Pipeline:
    return Pipeline(path, EngineConfig(device_type="cpu", block_size=16, engine_process=own, **options))


def prompts_for(name: str) -> list[Any]:
    texts: list[Any] = [PREFIX + "one", PREFIX + "two"]
    return (
        [*texts, (PREFIX, make_picture(30, 41, 1)), ("a frame", make_picture(64, 20, 2))] if name in FAMILIES else texts
    )


def answers(pipe: Pipeline, name: str = NAME) -> list[list[int]]:
    """Of each prompt alone, so that the later ones find what the earlier ones left in the caches."""
    found = []
    for prompt in prompts_for(name):
        response = pipe(prompt, GenerationConfig(max_new_tokens=12, ignore_eos=True))
        assert response.error is None, response.error
        found.append(list(response.token_ids))
    return found


def fresh(path: Path, name: str = NAME, **options: Any) -> list[list[int]]:
    with load(path, **options) as pipe:
        return answers(pipe, name)


def check_refused(pipe: Pipeline) -> None:
    response = pipe("hello")
    assert response.finish_reason == "error"
    assert isinstance(response.error, RequestError) and response.error.code is ErrorCode.SLEEPING
    assert "wake_up" in str(response.error)


def kill(pipe: Pipeline) -> None:
    core = pipe.engine.core
    assert isinstance(core, ProcessCore) and core.pid is not None
    pid = core.pid
    os.kill(pid, signal.SIGKILL)
    while core.pid == pid:
        time.sleep(0.01)


def make_pairs(tiny_checkpoint: Callable[[str], Path], folder: Path) -> Callable[[str], list[Path]]:
    """Return a function that gives a tiny checkpoint and one of the same model with other weights, by name."""

    @cache
    def get(name: str) -> list[Path]:
        first = tiny_checkpoint(name)
        return [first, copy_with_other_weights(first, folder / name)]

    return get


def epoch_of(pipe: Pipeline) -> int:
    return pipe.weights_epoch


def is_sleeping(pipe: Pipeline) -> bool:
    return pipe.is_sleeping


def pid_of(pipe: Pipeline) -> int | None:
    """The engine's process; None while there is none."""
    assert isinstance(pipe.engine.core, ProcessCore)
    return pipe.engine.core.pid
