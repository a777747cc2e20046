"""What is asked of Ray, and what becomes of ranks that it runs. Ray is one of this process; the ranks are real, without
a model."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_ray import HOST, Actor, FakeRay, RayError
from waiting import wait_until

from seesay.device import query
from seesay.device.ranks import Place
from seesay.engine.process.kinds import Hello
from seesay.engine.process.launch import start_module
from seesay.engine.process.ranks import ray_executor
from seesay.engine.process.ranks.followers import Followers
from seesay.engine.process.ranks.rank_messages import Follow
from seesay.engine.process.ranks.ray_executor import RayExecutor
from seesay.errors import ConfigError

pytestmark = pytest.mark.timeout(120)

CPU_ACTOR = {"num_cpus": 1, "num_gpus": 0, "max_restarts": 0}
GPU_ACTOR = {"num_cpus": 0, "num_gpus": 1, "max_restarts": 0}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeRay(monkeypatch)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> list[subprocess.Popen[bytes]]:
    """Those of ranks. They end with their actor."""
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str) -> subprocess.Popen[bytes]:
        started.append(start_module(module))
        return started[-1]

    def kill(actor: Actor) -> None:
        for each in started:
            each.kill()

    monkeypatch.setattr(ray_executor, "start_module", start)
    ray.on_kill = kill
    return started


def make(size: int, *, needs_gpus: bool = False) -> RayExecutor:
    return RayExecutor(size, needs_gpus=needs_gpus, module="odd_rank")


@pytest.fixture
def executor(processes: list[subprocess.Popen[bytes]]) -> Iterator[RayExecutor]:
    executor = make(2)
    yield executor
    if not executor._context.closed:
        executor.close()
    for process in processes:
        process.kill()
        process.wait(60)
        assert process.stdin is not None
        process.stdin.close()


def test_a_rank_that_ray_runs_is_led_as_any_other(ray: FakeRay, executor: RayExecutor) -> None:
    lost: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    follow = Follow("", {"does": "answers"}, 0, 20, 1.0)
    followers = Followers(follow, 2, lose=lost.put, executor=executor)
    followers.wait_for_answers()
    assert followers.call("count", lambda: "own", {"number": 7}) == ("own", [["count", 1, {"number": 7}]])
    followers.close()
    assert lost.empty()
    assert ray.asked == [
        ("init", "auto", False),
        ("reserve", [{"CPU": 1.0, f"node:{HOST}": 0.001}, {"CPU": 1.0}], "PACK"),
        ("actor", {**CPU_ACTOR, "scheduling_strategy": ("bundle", 1)}),
        "remove",
        "shutdown",
    ]
    assert ray.actors[0].runs[0].result(0) == "status 0"
    assert executor._context.closed and not executor.is_local


def start(executor: RayExecutor) -> Any:
    rank: Any = executor.start(1)
    assert rank.link.wait(60) and isinstance(rank.link.receive(), Hello)
    return rank


def test_how_a_rank_ends_is_known(processes: list[subprocess.Popen[bytes]], executor: RayExecutor) -> None:
    rank = start(executor)
    assert rank.find_end() is None and rank.node == HOST
    processes[0].kill()
    wait_until(lambda: rank.find_end() is not None)
    assert rank.find_end() == "signal 9"
    rank.end()
    with pytest.raises(Exception, match="the link is closed"):
        rank.link.send(Hello())


def test_a_rank_may_end_with_its_actor(ray: FakeRay, executor: RayExecutor) -> None:
    rank = start(executor)
    ray.actors[0].die()
    assert rank.find_end() == rank.find_end() == f"with its actor on {HOST}: the actor died"
    rank.end(60.0)
    assert "kill" not in ray.asked, "it has gone"


def test_a_rank_that_does_not_end_is_killed(
    ray: FakeRay, processes: list[subprocess.Popen[bytes]], executor: RayExecutor
) -> None:
    rank = start(executor)
    rank.end()
    assert ray.asked.count("kill") == 1 and ray.actors[0].runs[0].result(0) == "signal 9"
    assert processes[0].returncode == -9


def test_an_actor_that_has_gone_cannot_be_killed(ray: FakeRay, executor: RayExecutor) -> None:
    def refuse(actor: Actor) -> None:
        raise RayError("it has gone")

    rank, ray.on_kill = start(executor), refuse
    rank.kill()
    ray.actors[0].die()
    rank.end()


def test_a_group_that_has_gone_cannot_be_removed(ray: FakeRay, executor: RayExecutor) -> None:
    ray.fails_to_remove = True
    executor.close()
    assert ray.asked[-2:] == ["remove", "shutdown"]


def test_ranks_meet_at_a_store_of_rank_0(executor: RayExecutor) -> None:
    meeting = executor.meet()
    store: Any = meeting.store
    store.set("name", "value")
    assert store.get("name") == b"value" and meeting.address == HOST
    store._of_thread.socket.close(linger=0)


# --- what is reserved -------------------------------------------------------------------------------------------------


def test_a_cluster_may_be_named(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    make(1).close()
    assert ray.asked[:2] == [
        ("init", "10.0.0.1:6379", False), ("reserve", [{"CPU": 1.0, f"node:{HOST}": 0.001}], "PACK")
    ]  # fmt: skip


def test_each_rank_has_a_gpu(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0, which is no actor's, has that of one which does nothing."""
    monkeypatch.setattr(query, "pick_device", torch.device)
    executor = make(3, needs_gpus=True)
    assert ray.asked[1:] == [
        ("reserve", [{"GPU": 1.0, f"node:{HOST}": 0.001}, {"GPU": 1.0}, {"GPU": 1.0}], "PACK"),
        ("actor", {**GPU_ACTOR, "scheduling_strategy": ("bundle", 0)}),
    ]
    assert executor.pick_device("cuda", Place(0, 3)) == torch.device("cuda", 3)
    assert executor.pick_device("cuda:5", Place(0, 3)) == torch.device("cuda", 3), "Ray says which"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    assert executor.pick_device("cuda", Place(0, 3)) == torch.device("cuda", 1), "of those that are seen here"
    executor.close()


def test_ranks_on_processors_have_the_device_that_is_configured(ray: FakeRay, executor: RayExecutor) -> None:
    assert executor.pick_device("cpu", Place(0, 2)) == torch.device("cpu")
    assert not any(each[0] == "actor" for each in ray.asked)


@pytest.mark.parametrize(
    ("cluster", "needs_gpus", "words"),
    [
        ({"CPU": 2.0, "GPU": 8.0}, False, "3 ranks with Ray: take 3 CPUs, but the cluster has only 2"),
        ({"CPU": 8.0, "GPU": 2.0}, True, "3 ranks with Ray: take 3 GPUs, but the cluster has only 2"),
        ({"CPU": 8.0}, True, "3 ranks with Ray: take 3 GPUs, but the cluster has only 0"),
    ],
)
def test_a_cluster_may_be_too_small(ray: FakeRay, cluster: dict[str, float], needs_gpus: bool, words: str) -> None:
    """Nothing is waited for that never comes."""
    ray.cluster = cluster
    with pytest.raises(ConfigError, match=words):
        make(3, needs_gpus=needs_gpus)


def test_others_may_be_waited_for(ray: FakeRay, caplog: pytest.LogCaptureFixture) -> None:
    ray.reserves_after = 2
    make(3).close()
    assert [each for each in ray.asked if each[0] == "wait"] == [("wait", 10.0)] * 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["waiting for Ray to free 3 CPUs (1 are free now): 0 s"] * 2
    ray.reserves_after, ray.free = 1, {}
    make(3).close()
    assert caplog.records[-1].getMessage() == "waiting for Ray to free 3 CPUs (0 are free now): 0 s"


@pytest.mark.parametrize("error", [ConnectionError("nobody answers"), ValueError("no such address")])
def test_there_may_be_no_cluster(ray: FakeRay, error: Exception) -> None:
    ray.fails = error
    with pytest.raises(ConfigError, match=f"no Ray cluster is found: run `ray start --head`.*{error}"):
        make(2)


def test_ray_may_not_be_installed(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray: pip install 'seesay\[ray\]'"):
        make(2)


def test_where_a_rank_runs_is_logged(ray: FakeRay, executor: RayExecutor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "seesay"):
        rank = start(executor)
    assert f"rank 1: Ray runs it on {HOST}" in caplog.text
    rank.end()
