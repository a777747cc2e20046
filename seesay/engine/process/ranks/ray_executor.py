"""Ranks wherever Ray places them in a cluster: an actor per rank, which does nothing but run our process of a rank.

Ray reserves the devices of all ranks, starts the actors, and says how they end. What ranks tell each other goes over
our own links. The actors end with the process of rank 0, which is Ray's driver.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from types import ModuleType
from typing import TYPE_CHECKING

import zmq

from seesay.engine.process.launch import describe_status, give_orders, start_module
from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.ranks.executor import MODULE, RankProcess
from seesay.engine.process.tcp_link import Key, TcpLink, listen
from seesay.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup

    from seesay.device.rank_group import Meeting
    from seesay.device.ranks import Place

logger = logging.getLogger("seesay")

_PATIENCE_S = 10.0
_END_S = 10.0
_CLUSTER = "RAY_ADDRESS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PIN = 0.001
"""Of the resource that a node has under its own address."""


class RankActor:
    """What Ray runs on the node of a rank."""

    def address(self) -> str:
        """Return the node's address."""
        import ray

        return str(ray.util.get_node_ip_address())

    def gpus(self) -> list[str]:
        """Return the GPUs that Ray has given to this actor."""
        import ray

        return [str(each) for each in ray.get_gpu_ids()]

    def run(self, module: str, orders: dict[str, object]) -> str:
        """Run the process of a rank, and return how it ended. It is killed with this actor."""
        process = start_module(module)
        give_orders(process, orders)
        return describe_status(process.wait())


class RayRank:
    """A `RankProcess` that an actor runs."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], actor: ActorHandle, module: str, meets: _Meets) -> None:
        import ray

        self._actor = actor
        outgoing, to = listen(context, zmq.PUSH, meets.host, meets.key)
        incoming, back = listen(context, zmq.PULL, meets.host, meets.key)
        self.link: TcpLink[rank_messages.ToFollower, rank_messages.ToLeader] = TcpLink(
            incoming, outgoing, receives=rank_messages.ToLeader
        )
        distant = {"to": to, "back": back, "store": meets.store, "key": meets.key.public.decode()}
        distant["address"] = ray.get(actor.address.remote())
        self.node = distant["address"]
        self._run = actor.run.remote(module, {"distant": distant})
        self._end: str | None = None

    def register(self, poller: zmq.Poller) -> None:
        self.link.register(poller)

    def find_end(self) -> str | None:
        return self._wait(0.0)

    def _wait(self, timeout_s: float) -> str | None:
        import ray

        if self._end is None and ray.wait([self._run], timeout=timeout_s)[0]:
            try:
                self._end = ray.get(self._run)
            except ray.exceptions.RayError as error:
                self._end = f"with its actor on {self.node}: {str(error).splitlines()[0]}"
        return self._end

    def kill(self) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor)

    def end(self, timeout_s: float = 0.0) -> None:
        if self._wait(timeout_s) is None:
            self.kill()
            self._wait(_END_S)
        self.link.close()


class _Meets:
    """Where the ranks find rank 0: its address, the key of all its listeners, and the address of the store."""

    def __init__(self, host: str, key: Key, store: str) -> None:
        self.host, self.key, self.store = host, key, store


class RayExecutor:
    """An `Executor`: a placement group of a bundle per rank, the first of them on this node, near each other where they
    can be. needs_gpus: whether a rank takes a GPU; otherwise a CPU. `module` is what they run."""

    is_local = False

    def __init__(self, size: int, *, needs_gpus: bool, module: str = MODULE) -> None:
        """Connect to Ray, and wait until it has reserved what the ranks need. Raises `ConfigError`."""
        ray = _connect()
        from seesay.engine.process.ranks.rank_store import StoreKeeper

        self._ray, self._module = ray, module
        self._needs_gpus = needs_gpus
        host = ray.util.get_node_ip_address()
        self._group = _reserve(ray, size, {"GPU": 1.0} if needs_gpus else {"CPU": 1.0}, host)
        self._first = self._make_actor(0) if needs_gpus else None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        key = Key.make()
        self._keeper = StoreKeeper(self._context, host, key)
        self._meets = _Meets(host, key, self._keeper.address)

    def _make_actor(self, rank: int) -> ActorHandle:
        ray = self._ray
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=rank
        )
        kind = ray.remote(RankActor).options(
            num_cpus=0 if self._needs_gpus else 1,
            num_gpus=1 if self._needs_gpus else 0,
            scheduling_strategy=strategy,
            max_restarts=0,
        )
        return kind.remote()

    def start(self, rank: int) -> RankProcess:
        found = RayRank(self._context, self._make_actor(rank), self._module, self._meets)
        logger.info("rank %d: Ray runs it on %s", rank, found.node)
        return found

    def pick_device(self, device_type: str, place: Place) -> torch.device:
        from seesay.device.query import pick_device

        del place
        if self._first is None:
            return pick_device(device_type)
        [gpu] = self._ray.get(self._first.gpus.remote())
        visible = os.environ.get(_VISIBLE)
        index = int(gpu) if not visible else visible.split(",").index(gpu)
        return pick_device(f"{pick_device(device_type.partition(':')[0]).type}:{index}")

    def meet(self) -> Meeting:
        from seesay.device.rank_group import Meeting
        from seesay.engine.process.ranks.rank_store import RankStore

        return Meeting(RankStore(self._meets.store, self._meets.key.public), self._meets.host)

    def close(self) -> None:
        self._keeper.close()
        self._context.destroy(linger=0)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()


def _connect() -> ModuleType:
    """Return the module `ray`, connected to the cluster of this node."""
    try:
        import ray
        import ray.util.scheduling_strategies

        module: ModuleType = ray
    except ImportError:
        raise ConfigError(
            "distributed_executor_backend='ray' needs Ray: pip install 'seesay[ray]', on all nodes"
        ) from None
    try:
        ray.init(os.environ.get(_CLUSTER, "auto"), log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            "distributed_executor_backend='ray': no Ray cluster is found: run `ray start --head` here, or set "
            f"{_CLUSTER} ({error})"
        ) from None
    return module


def _reserve(ray: ModuleType, size: int, needs: dict[str, float], host: str) -> PlacementGroup:
    """Return the placement group of so many ranks. Raises `ConfigError` for more than the cluster has."""
    [(kind, _)] = needs.items()
    count = ray.cluster_resources().get(kind, 0)
    if count < size:
        raise ConfigError(f"{size} ranks with Ray: take {size} {kind}s, but the cluster has only {count:g}")
    bundles = [{**needs, f"node:{host}": _PIN}, *(dict(needs) for _ in range(size - 1))]
    group = ray.util.placement_group(bundles, strategy="PACK")
    started_s = time.monotonic()
    while not ray.wait([group.ready()], timeout=_PATIENCE_S)[0]:
        free = ray.available_resources().get(kind, 0)
        waited_s = time.monotonic() - started_s
        logger.warning("waiting for Ray to free %d %ss (%g are free now): %.0f s", size, kind, free, waited_s)
    return group
