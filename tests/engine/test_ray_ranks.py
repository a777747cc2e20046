"""Ranks that Ray places on the nodes of a cluster answer as those of one machine do, and end as they do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import parse
from rank_answers import LONG, PROMPTS, ask, check_lost, pid_of, read, submit, wait_for_pid
from ray_cluster import ray_cluster
from waiting import wait_until

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.process.ranks.executor import MODULE
from seesay.errors import ConfigError

pytestmark = pytest.mark.timeout(300)


def load(path: Path, tp: int, **options: Any) -> AsyncEngine:
    return AsyncEngine(str(path), backend_config=EngineConfig(device_type="cpu", block_size=16, tp=tp, **options))


def find_ranks() -> dict[int, int]:
    """Return the processes of ranks on this machine, and which process has started each."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and MODULE in (folder / "cmdline").read_text():
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                found[int(folder.name)] = int(parent)
        except OSError:
            continue
    return found


def is_of_ray(pid: int) -> bool:
    return "ray::" in Path(f"/proc/{pid}/cmdline").read_text()


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with one CPU each: two ranks are on both."""
    with ray_cluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(path: Path) -> list[list[int]]:
    with load(path, 1) as engine:
        return ask(engine)


def test_without_a_cluster(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before one is there: Ray looks for the processes of one, too."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray._private.services import find_gcs_addresses

    if find_gcs_addresses():
        pytest.skip("another test runs a cluster on this machine")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match="no Ray cluster is found"):
        load(path, 2, distributed_executor_backend="ray")


def test_ranks_of_two_nodes(cluster: Any, path: Path, expected: list[list[int]]) -> None:
    """A rank that is killed ends the requests in flight, and all ranks are started again."""
    earlier = set(find_ranks())
    with load(path, 2, distributed_executor_backend="ray", step_timeout_s=20.0) as engine:
        assert ask(engine) == expected
        [(rank, actor)] = {pid: parent for pid, parent in find_ranks().items() if pid not in earlier}.items()
        assert is_of_ray(actor)
        first = wait_for_pid(engine)
        running = submit(engine, parse(PROMPTS * 2, max_new_tokens=LONG, ignore_eos=True))
        assert running[1].get(timeout=120).finish_reason is None
        os.kill(rank, signal.SIGKILL)
        check_lost(read(*running), "rank 1 of 2 died (signal 9)")
        assert ask(engine) == expected, "what waited for the next process is answered"
        assert pid_of(engine) != first
        [(_, actor)] = {pid: parent for pid, parent in find_ranks().items() if pid not in earlier}.items()
        os.kill(actor, signal.SIGKILL)
        check_lost(read(*submit(engine, parse(PROMPTS, max_new_tokens=LONG, ignore_eos=True))), "rank 1 of 2 died")
        assert ask(engine) == expected
        running = submit(engine, parse(PROMPTS, max_new_tokens=LONG, ignore_eos=True))
        assert running[1].get(timeout=120).finish_reason is None
        os.kill(wait_for_pid(engine), signal.SIGKILL)
        check_lost(read(*running), "the engine process died (signal 9)")
        assert ask(engine) == expected
    wait_until(lambda: not set(find_ranks()) - earlier, "all ranks have ended")


def test_more_ranks_than_the_cluster_has_room_for(cluster: Any, path: Path) -> None:
    with pytest.raises(ConfigError, match="4 ranks with Ray: take 4 CPUs, but the cluster has only 2"):
        load(path, 4, distributed_executor_backend="ray")
