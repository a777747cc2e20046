"""The vision encoder in a process of its own: the same answers, and what happens when it dies, hangs or cannot load."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import assert_same, make_picture, parse
from family_contract import load_family
from rank_answers import read, submit
from rank_processes import find_children, is_over
from waiting import wait_until

from seesay.config import EngineConfig, VisionConfig
from seesay.encoders.encoder import EncoderLostError
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.engine.process.remote_core import ProcessCore
from seesay.engine.process.tower import tower_messages
from seesay.engine.process.tower.remote_encoder import MODULE, RemoteEncoder, TowerProcess
from seesay.errors import CheckpointError, RequestError

NUM_PICTURES = 4


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


def load(path: Path, *, own_process: bool = True, **options: Any) -> AsyncEngine:
    config = EngineConfig(device_type="cpu", block_size=16, **options)
    return AsyncEngine(str(path), backend_config=config, vision_config=VisionConfig(own_process=own_process))


def make_prompts(first: int = 0) -> list[Any]:
    pictures = [(f"what is {k}?", make_picture(60 + 9 * k, 50, first + k)) for k in range(NUM_PICTURES)]
    return ["go on", *pictures]


def ask(engine: AsyncEngine, prompts: list[Any], num_tokens: int = 6) -> list[Response]:
    return read(*submit(engine, parse(prompts, max_new_tokens=num_tokens, ignore_eos=True)))


def find_encoder(engine: AsyncEngine, *others: int) -> int:
    """Return the id of the encoder's process, once there is one that is none of `others`."""
    core = engine.core.pid if isinstance(engine.core, ProcessCore) else os.getpid()
    assert core is not None

    def find() -> list[int]:
        return [pid for pid in find_children(core, MODULE) if pid not in others]

    wait_until(lambda: bool(find()), "the encoder's process is started")
    [pid] = find()
    return pid


@pytest.fixture(scope="module")
def expected(path: Path) -> list[Response]:
    with load(path, own_process=False) as engine:
        return ask(engine, make_prompts())


@pytest.fixture(scope="module", params=["thread", "ranks"])
def engine(request: pytest.FixtureRequest, path: Path) -> Iterator[AsyncEngine]:
    """In a thread of this process, and in two ranks, of which the first one has the encoder."""
    with load(path, tp=2 if request.param == "ranks" else 1) as engine:
        yield engine
        pid = find_encoder(engine)
    assert is_over(pid), "the process ends with its engine"


def test_answers_are_the_same(engine: AsyncEngine, expected: list[Response]) -> None:
    for found, other in zip(ask(engine, make_prompts()), expected, strict=True):
        assert_same(found, other)


def test_a_killed_process_is_started_again(engine: AsyncEngine, expected: list[Response]) -> None:
    """Pictures that it was encoding, too, are encoded by the next one: nobody sees anything of it."""
    before, pids = engine.stats().total_encoder_restarts, [find_encoder(engine)]
    for seed in range(2):
        engine.reset_caches()
        running = submit(engine, parse(make_prompts() * 2, max_new_tokens=6, ignore_eos=True))
        time.sleep(random.Random(seed).random() * 0.2)
        os.kill(pids[-1], signal.SIGKILL)
        for found, other in zip(read(*running), expected * 2, strict=True):
            assert_same(found, other)
        engine.reset_caches()
        for found, other in zip(ask(engine, make_prompts()), expected, strict=True):
            assert_same(found, other)
        pids.append(find_encoder(engine, *pids))
    assert engine.stats().total_encoder_restarts == before + 2
    assert all(map(is_over, pids[:-1]))


def test_weights_cannot_be_replaced(engine: AsyncEngine, path: Path) -> None:
    with pytest.raises(RequestError, match="own_process"):
        engine.update_weights(str(path))
    with pytest.raises(RequestError, match="own_process"):
        engine.sleep()
    assert [one.error for one in ask(engine, make_prompts())] == [None] * (NUM_PICTURES + 1)


# --- the process alone ------------------------------------------------------------------------------------------------


@pytest.fixture
def find_own() -> Callable[[], list[int]]:
    """`find_own()` returns the ids of the encoders' processes that were started since."""
    before = find_children(os.getpid(), MODULE)
    return lambda: [pid for pid in find_children(os.getpid(), MODULE) if pid not in before]


def start(folder: Path, *, limit_s: float = 600.0) -> RemoteEncoder:
    orders = tower_messages.Start(str(folder), {"device_type": "cpu"}, "cpu", "float32", 30)
    return RemoteEncoder(TowerProcess(orders, limit_s=limit_s))


def make_features(path: Path) -> tuple[list[Any], list[torch.Tensor]]:
    """Features of two pictures, and what a tower in this process makes of them."""
    family, _ = load_family(path)
    features = family.small_inputs()[:2]
    with torch.inference_mode():
        return features, family.build_encoder(torch.device("cpu"), torch.float32).encode(features)


def test_embeddings_are_those_of_the_tower(path: Path, find_own: Callable[[], list[int]]) -> None:
    features, expected = make_features(path)
    encoder = start(path)
    [pid] = find_own()
    torch.testing.assert_close(encoder.encode(features), expected)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EncoderLostError, match=r"died \(signal 9\)"):
        encoder.encode(features)
    torch.testing.assert_close(encoder.encode(features), expected)
    with pytest.raises(RuntimeError, match="KeyError: 'grid'"):
        encoder.encode([{}])
    torch.testing.assert_close(encoder.encode(features), expected)
    [pid] = find_own()
    del encoder
    gc.collect()  # what was raised refers to it
    assert is_over(pid)


def test_a_process_that_hangs_is_replaced(path: Path, find_own: Callable[[], list[int]]) -> None:
    features, _ = make_features(path)
    encoder = start(path, limit_s=1.0)
    [pid] = find_own()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match="hangs: a call has taken 1 s"):
        encoder.encode(features)
    assert is_over(pid)


def test_a_process_that_a_signal_stopped_is_replaced_soon(path: Path, find_own: Callable[[], list[int]]) -> None:
    """However long a call may take: no load of the machine explains it."""
    features, expected = make_features(path)
    encoder = start(path, limit_s=3600.0)
    [pid] = find_own()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EncoderLostError, match="stopped by a signal"):
        encoder.encode(features)
    assert is_over(pid)
    torch.testing.assert_close(encoder.encode(features), expected)


def test_bfloat16_crosses() -> None:
    tensors = [torch.randn(3, 4).bfloat16(), torch.randn(2, 4).bfloat16()]
    torch.testing.assert_close(tower_messages.Encoded.of(tensors).restore(), tensors)
    assert tower_messages.Encoded.of([]).restore() == []


def test_a_folder_without_a_model(tmp_path: Path, find_own: Callable[[], list[int]]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        start(tmp_path)
    assert not find_own()
