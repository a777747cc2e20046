"""A frontend process that hangs is noticed: the beats of its event loop, and the supervisor that misses them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from live_server import wait_until

from seesay import EngineConfig, serve
from seesay.engine.process.link import LinkClosedError
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.pulse import start_beating
from seesay.system.liveness import Silence


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def look(silence: Silence, clock: Clock, seconds: float, *, every_s: float = 0.5) -> dict[int, float]:
    """Let time pass, and look all the while, as the supervisor does. Returns what was found last."""
    found: dict[int, float] = {}
    for _ in range(int(seconds / every_s)):
        clock.now_s += every_s
        found = silence.find_hung()
    return found


def test_a_front_that_is_silent_for_too_long_is_found() -> None:
    clock = Clock()
    silence = Silence(10.0, clock)
    assert look(silence, clock, 100.0) == {}, "frontends that have not begun are not expected to beat"
    for index in (0, 1):
        silence.hear(index)
    for _ in range(5):
        assert look(silence, clock, 9.0) == {}
        silence.hear(0)
        silence.hear(1)
    assert look(silence, clock, 9.0) == {}
    silence.hear(1)
    assert look(silence, clock, 2.0) == {0: 11.0}
    silence.forget(0)
    assert look(silence, clock, 2.0) == {}, "another one is started"


def test_time_in_which_everything_stood_still_does_not_count() -> None:
    clock = Clock()
    silence = Silence(10.0, clock)
    silence.hear(0)
    assert look(silence, clock, 5.0) == {}
    clock.now_s += 8 * 3600  # the laptop slept
    assert silence.find_hung() == {}
    assert look(silence, clock, 3.5) == {}
    assert look(silence, clock, 1.0) == {0: 10.5}, "but the frontend had no more than the rest of its time"


def test_the_event_loop_itself_beats() -> None:
    sent: list[messages.ToSupervisor] = []

    async def beat() -> None:
        start_beating(sent.append, 0.04)
        while len(sent) < 5:
            await asyncio.sleep(0.001)
        num_sent = len(sent)
        time.sleep(0.1)
        assert len(sent) == num_sent
        while len(sent) < num_sent + 2:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(beat(), 60))
    assert set(map(type, sent)) == {messages.Beat}


def test_beats_end_with_the_supervisor() -> None:
    calls: list[None] = []

    def refuse(message: messages.ToSupervisor) -> None:
        del message
        calls.append(None)
        raise LinkClosedError("gone")

    async def beat() -> None:
        start_beating(refuse, 0.004)
        await asyncio.sleep(0.05)

    asyncio.run(beat())
    assert len(calls) == 1


def find_frontends(pid: int) -> list[int]:
    """The frontend processes of a server, in the order in which they were started."""
    children = [child for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    frontends = []
    for child in children:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"seesay.serving.frontends.process" in Path(f"/proc/{child}/cmdline").read_bytes():
                frontends.append(int(child))
    return sorted(frontends)


def test_a_front_that_hangs_is_started_again_and_loses_its_own_requests_alone(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    """Its process is stopped, so its event loop does not run; a healthy one beats once a second."""
    config = EngineConfig(device_type="cpu", session_len=2048)
    model = str(tiny_checkpoint("qwen2_5_vl"))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 1500, "ignore_eos": True}
    with serve(
        model, backend_config=config, server_port=0, model_name="tiny", num_frontends=2, frontend_timeout_s=20.0
    ) as server:
        first, second = find_frontends(server.pid)

        def find_up() -> int:
            num: int = httpx.get(f"{server.api_server_url}/health", timeout=60).json()["frontends_up"]
            return num

        wait_until(lambda: find_up() == 2)
        os.kill(second, signal.SIGSTOP)  # it takes no connection, so the other one gets this
        wait_until(lambda: find_up() == 1)  # it is no longer counted, long before it is killed
        assert second in find_frontends(server.pid)
        chat = f"{server.api_server_url}/v1/chat/completions"
        with httpx.stream("POST", chat, json={**body, "stream": True}, timeout=90) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: {")
            os.kill(first, signal.SIGSTOP)
            os.kill(second, signal.SIGCONT)
            assert find_up() in (1, 2), "the other frontend answers before anybody has noticed"
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        wait_until(lambda: find_up() == 2 and first not in find_frontends(server.pid))
        assert second in find_frontends(server.pid)

        def tells_of_it() -> bool:
            metrics = httpx.get(f"{server.api_server_url}/metrics", timeout=60).text
            return "seesay_front_restarts_total 1.0" in metrics and 'seesay_front_up{front="0"} 1.0' in metrics

        wait_until(tells_of_it)
