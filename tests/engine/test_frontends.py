"""Several frontends of one engine process: each has its own requests, and one that dies loses no others."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import make_picture, parse
from rank_answers import read, submit
from waiting import wait_until

from seesay.config import EngineConfig, GenerationConfig, VisionConfig
from seesay.config.plain import as_plain
from seesay.engine.commands import ModelStatus, Sleep, WakeUp
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.process import origin
from seesay.engine.process.kinds import ToFrontend
from seesay.engine.process.listener import Connection, open_listener
from seesay.engine.process.remote import silence_watch
from seesay.engine.process.remote.ledger import Ledger
from seesay.engine.process.remote_core import ProcessCore
from seesay.engine.token_messages import TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import MultimodalInput

CONFIG = EngineConfig(device_type="cpu", block_size=16)


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def supervisor(path: Path) -> Iterator[tuple[ProcessCore, str]]:
    """What starts the engine process, and the address of its listener. It asks for nothing itself."""
    listener, address = open_listener()
    with listener:
        core = ProcessCore.load(
            path, as_plain("backend_config", CONFIG), as_plain("vision_config", VisionConfig()), listener=listener
        ).wait_until_loaded()
        yield core, address
        core.close()


def encoded_of(engine: AsyncEngine) -> set[bytes]:
    """The pictures that a frontend knows to be encoded."""
    assert isinstance(engine.core, ProcessCore)
    return set(engine.core._ledger.embeddings.encoded)


def knows_pictures(engine: AsyncEngine) -> bool:
    return bool(encoded_of(engine))


def enter(path: Path, address: str) -> AsyncEngine:
    return AsyncEngine(str(path), backend_config=CONFIG, engine_address=address)


def test_frontends_ask_one_engine_at_the_same_time(path: Path, supervisor: tuple[ProcessCore, str]) -> None:
    """Their requests have the same ids, and each gets its own answers; an embedding is made once for all."""
    prompts = [("what is this?", make_picture(100, 90, k % 3)) for k in range(6)]
    config = GenerationConfig(max_new_tokens=8, ignore_eos=True)
    with AsyncEngine(str(path), backend_config=CONFIG) as alone:
        ids, arrived = submit(alone, parse(prompts, config))
        expected = [answer.token_ids for answer in read(ids, arrived)]
    before = supervisor[0].stats().total_encoder_items
    with enter(path, supervisor[1]) as one, enter(path, supervisor[1]) as other:
        running = [submit(one, parse(prompts, config)), submit(other, parse(prompts[::-1], config))]
        assert running[0][0] == running[1][0], "the same ids"
        found = [[answer.token_ids for answer in read(*asked)] for asked in running]
        assert found == [expected, expected[::-1]]
        assert one.stats().total_encoder_items == before + 3
        wait_until(lambda: encoded_of(other) == encoded_of(one) != set())
    wait_until(lambda: supervisor[0].stats().num_running == 0)


def test_a_front_that_joins_later_knows_what_is_encoded(path: Path, supervisor: tuple[ProcessCore, str]) -> None:
    request = parse([("known?", make_picture(80, 81, 50))], max_new_tokens=2)
    for is_known in (False, True):
        with enter(path, supervisor[1]) as one:
            if is_known:
                wait_until(partial(knows_pictures, one))
            [answer] = read(*submit(one, request))
            assert answer.media[0].is_cached is is_known


def test_an_owner_with_a_name_is_the_same_for_all_frontends() -> None:
    """A key that sends requests through several frontends gets one share, not one of each."""

    def sent_by(frontend: Ledger, owner: Hashable) -> int | bytes:
        prompt = MultimodalInput(
            token_ids=np.zeros(1, np.int64), positions=np.zeros((1, 1), np.int64), next_position=1, items=()
        )
        request = TokenRequest(request_id=frontend._num_owners, prompt=prompt, params=SamplingParams(), owner=owner)
        return frontend.send(frontend.add(request), object()).owner

    one, other = Ledger(), Ledger()
    named: list[Hashable] = ["10.0.0.1", b"10.0.0.1", "\udc80", b"digest"]
    names = [sent_by(one, owner) for owner in named]
    assert names == [sent_by(other, owner) for owner in reversed(named)][::-1]
    assert len(set(names)) == 4 and all(isinstance(name, bytes) for name in names)
    assert isinstance(sent_by(one, None), int) and isinstance(sent_by(one, (1, "a")), int)


def test_the_starter_hears_at_once_that_others_are_answered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies before it has computed anything is started twice more, and then no longer. What it computes
    for others counts, also when it dies before its next heartbeat."""
    monkeypatch.setattr(silence_watch, "BEAT_S", 1000.0)
    listener, address = open_listener()
    options = as_plain("backend_config", CONFIG), as_plain("vision_config", VisionConfig())
    with listener, closing(ProcessCore.load(path, *options, listener=listener)) as core, enter(path, address) as one:
        read(*submit(one, parse(["go on"], max_new_tokens=2, ignore_eos=True)))
        wait_until(lambda: core.stats().total_step_tokens > 0)


FRONT = """
import sys
sys.path[:0] = {paths!r}
from seesay import EngineConfig, GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.vl.prompts.conversation_parts import parse_prompts
config = EngineConfig(device_type="cpu", block_size=16)
engine = AsyncEngine({model!r}, backend_config=config, engine_address={address!r})
config = GenerationConfig(max_new_tokens=1900, ignore_eos=True)
requests, _ = parse_prompts(["go on"] * 6, config)
engine.submit_batch(requests, lambda delta: print(len(delta.token_ids), flush=True))
sys.stdin.read()
"""


def test_a_front_that_is_killed_loses_its_own_requests_alone(
    path: Path, supervisor: tuple[ProcessCore, str], tmp_path: Path
) -> None:
    core, address = supervisor
    script = FRONT.format(paths=[str(Path(__file__).parents[2])], model=str(path), address=address)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with enter(path, address) as one:
        asked = submit(one, parse(["mine"], max_new_tokens=400, ignore_eos=True))
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as frontend:
            try:
                assert frontend.stdout is not None and frontend.stdout.readline()
                asked = submit(one, parse(["mine"], max_new_tokens=400, ignore_eos=True))
            finally:
                frontend.kill()
        [answer] = read(*asked)
        assert answer.finish_reason == "length" and answer.generate_token_len == 400
        wait_until(lambda: core.stats().num_running == 0 and core.stats().num_used_kv_blocks == 0)
        assert not list(tmp_path.iterdir())


def test_a_front_that_is_killed_while_it_connects_leaves_nothing(
    path: Path, supervisor: tuple[ProcessCore, str], tmp_path: Path
) -> None:
    """Killed at the first moment at which its folder of sockets is there."""
    lines = (
        "import os, signal",
        "from pathlib import Path",
        "from seesay.engine.process import listener as listener",
        "listener.Link = lambda folder, *_, **__: (print(Path(folder).is_dir(), flush=True), os.kill(os.getpid(), 9))",
        f"listener.Connection({supervisor[1]!r}, receives=object)",
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", "\n".join(lines)]
    frontend = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    assert frontend.stdout == "True\n" and frontend.returncode == -signal.SIGKILL
    wait_until(lambda: not list(tmp_path.iterdir()))
    with enter(path, supervisor[1]) as one:
        [answer] = read(*submit(one, parse(["go on"], max_new_tokens=2, ignore_eos=True)))
        assert answer.finish_reason == "length"


def test_strangers_are_let_go(path: Path, supervisor: tuple[ProcessCore, str]) -> None:
    """Whoever sends what is no message ends its own connection."""
    core, address = supervisor
    stranger: Connection[Any, ToFrontend] = Connection(address, receives=ToFrontend)
    stranger.link.send(["no", "message"])
    wait_until(lambda: stranger.find_end() is not None)
    stranger.end()
    with enter(path, address) as one:
        [answer] = read(*submit(one, parse(["still there?"], max_new_tokens=2, ignore_eos=True)))
        assert answer.finish_reason == "length"
    assert core.fault is None


def test_a_front_refuses_requests_when_the_owner_says_that_the_engine_sleeps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frontend that is not connected may have heard neither of the sleep of an engine that has died nor of its
    end."""
    may_connect = threading.Event()
    may_connect.set()
    told: list[ModelStatus] = []  # what the owner says for the time being, instead of the truth

    class SlowConnection(Connection[Any, Any]):
        def __init__(self, address: str, *, receives: Any) -> None:
            assert may_connect.wait(120)
            super().__init__(address, receives=receives)

    monkeypatch.setattr(origin, "Connection", SlowConnection)
    listener, address = open_listener()
    options = as_plain("backend_config", CONFIG), as_plain("vision_config", VisionConfig())
    request = parse(["go on"], max_new_tokens=4, ignore_eos=True)
    with (
        listener,
        closing(ProcessCore.load(path, *options, listener=listener)) as owner,
        AsyncEngine(
            str(path),
            backend_config=CONFIG,
            engine_address=address,
            read_status=lambda: told[0] if told else owner.status,
        ) as one,
    ):
        frontend = one.core
        assert isinstance(frontend, ProcessCore)

        def die() -> None:
            assert owner.pid is not None
            os.kill(owner.pid, signal.SIGKILL)
            wait_until(lambda: owner.pid is None and frontend._state.child is None)

        def check_refused(asked: tuple[list[int], queue.SimpleQueue[Any]]) -> None:
            [answer] = read(*asked)
            assert isinstance(answer.error, RequestError) and answer.error.code is ErrorCode.SLEEPING

        [expected] = read(*submit(one, request))
        owner.run_command(Sleep(level=2))
        die()
        check_refused(submit(one, request))
        with pytest.raises(RequestError, match="died while it slept, wake_up"):
            one.update_weights(path)
        frontend._state.status = ModelStatus()  # had it heard nothing of the sleep
        check_refused(submit(one, request))
        told.append(ModelStatus())
        waiting = submit(one, request)
        wait_until(lambda: not one._preparation.open.waiting and bool(frontend._ledger.waiting()))
        told.clear()
        check_refused(waiting)

        owner.run_command(WakeUp())
        owner.run_command(Sleep(level=1))
        wait_until(lambda: bool(frontend.status.asleep) and frontend._state.child is not None)
        may_connect.clear()
        die()
        check_refused(submit(one, request))
        owner.run_command(WakeUp())
        assert frontend.status.asleep, "the frontend has not heard of it"
        waiting = submit(one, request)
        wait_until(lambda: not one._preparation.open.waiting)
        may_connect.set()
        assert [answer.token_ids for answer in read(*waiting)] == [expected.token_ids]


def test_frontends_go_on_with_the_next_engine_process(path: Path, supervisor: tuple[ProcessCore, str]) -> None:
    """Last in this file: the counts of the process begin anew."""
    core, address = supervisor
    with enter(path, address) as one:
        asked = submit(one, parse(["go on"], max_new_tokens=1500, ignore_eos=True))
        assert asked[1].get(timeout=60).finish_reason is None
        assert core.pid is not None
        os.kill(core.pid, signal.SIGKILL)
        [answer] = read(*asked)
        assert isinstance(answer.error, RequestError) and "send the request again" in str(answer.error)
        [answer] = read(*submit(one, parse(["again"], max_new_tokens=2, ignore_eos=True)))
        assert answer.finish_reason == "length" and one.fault is None
        wait_until(lambda: core.fault is None)
        assert core.stats().total_engine_restarts == 1 and one.stats().total_engine_restarts == 0, "counted once"
    assert threading.active_count() < 100
