"""A cluster of Ray in this process, for tests of what we ask of Ray: actors are threads. tests/engine/test_ray_ranks.py
has a real one, where Ray is installed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HOST = "127.0.0.1"


class RayError(Exception):
    """As `ray.exceptions.RayError`."""


class Method:
    """A method of an actor. Calls run in threads of their own."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def remote(self, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                result = self._call(*arguments)
            except Exception as error:
                if not future.done():
                    future.set_exception(RayError(str(error)))
            else:
                if not future.done():
                    future.set_result(result)

        threading.Thread(target=run, daemon=True).start()
        return future


class Actor:
    """The handle of an actor. It remembers what it runs, which ends with it."""

    def __init__(self, actor: Any) -> None:
        self.address, self.gpus, self._actor = Method(actor.address), Method(actor.gpus), actor
        self.runs: list[Future[Any]] = []
        self.run = SimpleNamespace(remote=self._run)

    def _run(self, *arguments: Any) -> Future[Any]:
        self.runs.append(Method(self._actor.run).remote(*arguments))
        return self.runs[-1]

    def die(self) -> None:
        """End it, as Ray does with one whose node has gone."""
        for future in self.runs:
            if not future.done():
                future.set_exception(RayError("the actor died\nits log says more"))


class FakeRay:
    """cluster, free: what the cluster has, and what of it is free now. asked: what was asked for. gpus: of each actor.
    reserves_after: waits until the placement group is ready. fails: what `ray.init` raises. on_kill: called with an
    actor that is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster: dict[str, float] = {"CPU": 3.0, "GPU": 3.0}
        self.free: dict[str, float] = {"CPU": 1.0}
        self.asked: list[Any] = []
        self.actors: list[Actor] = []
        self.gpus: list[int] = [3]
        self.reserves_after = 0
        self.fails: Exception | None = None
        self.fails_to_remove = False
        self.on_kill: Callable[[Actor], None] = Actor.die
        ray: Any = ModuleType("ray")
        ray.init, ray.shutdown = self._init, lambda: self.asked.append("shutdown")
        ray.get, ray.wait = lambda future: future.result(60), self._wait
        ray.kill, ray.remote, ray.get_gpu_ids = self._kill, self._remote, lambda: self.gpus
        ray.cluster_resources, ray.available_resources = lambda: self.cluster, lambda: self.free
        ray.exceptions = SimpleNamespace(RayError=RayError)
        util: Any = ModuleType("ray.util")
        strategies: Any = ModuleType("ray.util.scheduling_strategies")
        ray.util, util.scheduling_strategies = util, strategies
        strategies.PlacementGroupSchedulingStrategy = self._make_strategy
        util.get_node_ip_address, util.placement_group = lambda: HOST, self._reserve
        util.remove_placement_group = self._remove
        for module in (ray, util, strategies):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def _init(self, address: str, **options: Any) -> None:
        self.asked.append(("init", address, options["log_to_driver"]))
        if self.fails is not None:
            raise self.fails

    def _reserve(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        self.asked.append(("reserve", bundles, strategy))
        return SimpleNamespace(ready=self._make_ready)

    def _make_ready(self) -> Future[Any]:
        ready: Future[Any] = Future()
        if not self.reserves_after:
            ready.set_result(None)
        return ready

    def _wait(self, futures: list[Future[Any]], timeout: float) -> tuple[list[Future[Any]], list[Future[Any]]]:
        if self.reserves_after:
            self.asked.append(("wait", timeout))
            self.reserves_after -= 1
            return [], futures
        done, rest = wait(futures, timeout)
        return list(done), list(rest)

    def _make_strategy(self, group: Any, *, placement_group_bundle_index: int) -> Any:
        return "bundle", placement_group_bundle_index

    def _remote(self, kind: Callable[[], Any]) -> Any:
        def make(**options: Any) -> Any:
            def start() -> Actor:
                self.asked.append(("actor", options))
                self.actors.append(Actor(kind()))
                return self.actors[-1]

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=make)

    def _kill(self, actor: Actor) -> None:
        self.asked.append("kill")
        self.on_kill(actor)

    def _remove(self, group: Any) -> None:
        self.asked.append("remove")
        if self.fails_to_remove:
            raise RayError("the cluster has gone")
