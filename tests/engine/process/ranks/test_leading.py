"""How rank 0 gets its followers, meets them and has them watched. None of them is started."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seesay.config import EngineConfig
from seesay.device import rank_group
from seesay.device.ranks import Place
from seesay.engine.process import kinds
from seesay.engine.process.ranks import leading, ray_executor
from seesay.engine.process.ranks.executor import LocalExecutor
from seesay.engine.process.ranks.leading import Joining, start_followers, watch
from seesay.engine.process.ranks.led_adapters import LedAdapterStore
from seesay.engine.process.ranks.led_runner import LedRunner
from seesay.engine.process.ranks.led_weights import LedWeights
from seesay.engine.process.ranks.rank_messages import Follow
from seesay.engine.process.ranks.stage_runners import FirstStageRunner
from seesay.system.liveness import LIMIT_S

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, "local"),
        ({"distributed_executor_backend": "ray"}, ("ray", 3, True)),
        ({"distributed_executor_backend": "ray", "device_type": "cpu"}, ("ray", 3, False)),
        ({"distributed_executor_backend": "mp", "device_type": "cpu"}, "local"),
    ],
)
def test_followers_are_started_where_the_configuration_says(
    monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], expected: Any
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(leading, "Followers", lambda *arguments, **options: made.append((arguments, options)))
    monkeypatch.setattr(
        ray_executor, "RayExecutor", lambda size, *, needs_gpus: SimpleNamespace(made=("ray", size, needs_gpus))
    )
    lose: Any = object()
    start_followers(kinds.Start("folder", engine, {"vision": 1}, 30, 0.5), 3, lose=lose)
    [((follow, size), options)] = made
    assert follow == Follow("folder", engine, 0, 30, 0.5) and size == 3 and options["lose"] is lose
    executor = options["executor"]
    assert isinstance(executor, LocalExecutor) if expected == "local" else executor.made == expected


class Followers:
    """Two of them. Their executor says where they meet."""

    size = 3

    def __init__(self) -> None:
        self.executor = self
        self.picked: list[Any] = []
        self.watched: list[Any] = []

    def pick_device(self, *arguments: Any) -> torch.device:
        self.picked.append(arguments)
        return CPU

    def meet(self) -> str:
        return "here"

    def wait_for_answers(self) -> list[Any]:
        return []

    def watch_steps(self, limit_s: float, silence_s: float) -> None:
        self.watched.append((limit_s, silence_s))


@pytest.fixture
def followers() -> Any:
    return Followers()


def test_the_executor_says_which_device_rank_0_has(followers: Any) -> None:
    assert Joining(followers, EngineConfig(device_type="cuda:1")).pick_device() is CPU
    assert followers.picked == [("cuda:1", Place(0, 3))]


@pytest.mark.parametrize(("options", "runner"), [({"tp": 3}, LedRunner), ({"pp": 2}, FirstStageRunner)])
def test_rank_0_meets_the_others_and_leads_them(
    monkeypatch: pytest.MonkeyPatch, followers: Any, options: dict[str, Any], runner: type
) -> None:
    met: list[Any] = []

    def join(name: str, *arguments: Any, **options: Any) -> str:
        met.append((name, *arguments, options))
        return name

    for name in ("join_group", "join_stages"):
        monkeypatch.setattr(rank_group, name, partial(join, name))
    parts: Any = Joining(followers, EngineConfig(step_timeout_s=10.0, **options)).join(CPU)
    is_staged = "pp" in options
    name = "join_stages" if is_staged else "join_group"
    assert met == [(name, "here", Place(0, 3), CPU, {"timeout_s": 3610.0})] and parts.ranks == name
    assert parts.make_runner.func is runner
    assert parts.make_runner.keywords == {"stages" if is_staged else "ranks": name, "followers": followers}
    assert parts.make_weights.func is LedWeights and parts.make_weights.keywords == {"followers": followers}
    assert parts.make_adapter_store.func is LedAdapterStore
    assert parts.make_adapter_store.keywords == {"followers": followers}
    assert parts.wait_until_loaded == followers.wait_for_answers


@pytest.mark.parametrize(
    ("step_timeout_s", "device", "limits"),
    [
        (5.0, "cpu", (5.0, 7.0)),
        (100.0, "cuda:0", (100.0, LIMIT_S)),
        (None, "cuda:0", (120.0, LIMIT_S)),
        (None, "cpu", (3600.0, LIMIT_S)),
    ],
)
def test_followers_are_watched_as_the_engine_is(
    followers: Any, step_timeout_s: float | None, device: str, limits: tuple[float, float]
) -> None:
    watch(followers, EngineConfig(step_timeout_s=step_timeout_s), device, 1.0)
    assert followers.watched == [limits]
