"""`--dp N`: N server processes, each with an engine and an encoder, behind a distributor in this process.

A replica that dies or hangs is started again, under its name and at another port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from seesay.config import EngineConfig, VisionConfig
from seesay.device.query import is_accelerator, means_nvidia
from seesay.errors import ConfigError, SeesayError
from seesay.serving.child_process import MAX_REPORT_BYTES, check_report, start_server
from seesay.serving.errors import ApiError
from seesay.serving.http.client import fetch
from seesay.serving.http.listener import open_sockets, port_of
from seesay.serving.proxy.app import serve_nodes
from seesay.serving.proxy.nodes import Nodes
from seesay.serving.routing.node import Node
from seesay.serving.settings import ServerSettings
from seesay.serving.traffic.metric_sums import Family, Sample

logger = logging.getLogger("seesay")

_FIRST_DELAY_S, _MAX_DELAY_S = 0.2, 10.0
"""A replica that ended before it listened is started again after a while, which doubles each time."""
_END_S = 10.0
_METRICS_S = 5.0
_HOST = "127.0.0.1"
_GPUS = Path("/proc/driver/nvidia/gpus")


def serve_replicas(
    orders: Mapping[str, object],
    settings: ServerSettings,
    environments: Sequence[Mapping[str, str]],
    *,
    sockets: list[socket.socket],
    on_ready: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. `orders` are those of a replica (`start_server`), of which
    there is one for each of `environments`. Raises what a replica raises at the first start."""
    asyncio.run(_serve(orders, settings, environments, sockets, on_ready))


def divide_devices(settings: ServerSettings, backend: EngineConfig, vision: VisionConfig) -> list[dict[str, str]]:
    """Return the environment of each replica: its GPUs, or its share of the processor cores. A replica's encoder is on
    one of its own: `vision.device` counts these. Raises `ConfigError` where there are not enough GPUs."""
    count, each = settings.num_replicas, max(backend.num_ranks, _count_encoder_gpus(vision.device))
    if ":" in backend.device_type:
        raise ConfigError(f"--dp above 1 needs --devices instead of --device {backend.device_type}")
    gpus = [] if backend.device_type == "cpu" else list(map(str, settings.devices)) or _visible_gpus()
    _check_device(backend.device_type, gpus)
    if not gpus:
        if settings.devices:
            raise ConfigError("--devices names GPUs: do not give --device cpu")
        num_cores = len(os.sched_getaffinity(0))
        return [{"OMP_NUM_THREADS": str(max(1, num_cores // (count * each))), **_given_threads()}] * count
    if len(gpus) < count * each:
        raise ConfigError(f"--dp {count} needs {count * each} GPUs, there are {len(gpus)}: {', '.join(gpus)}")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])} for i in range(count)]


def _check_device(device: str, gpus: Sequence[str]) -> None:
    """Raise `ConfigError` for a device that is neither the CPU nor one of `gpus`."""
    if is_accelerator(device) and not (gpus and means_nvidia(device)):
        raise ConfigError(
            f"--dp above 1 divides CUDA GPUs or the CPU's cores: for --device {device}, start a server on each device, "
            "all with --proxy-url (docs/several_servers.md)"
        )


def _count_encoder_gpus(device: str | None) -> int:
    """Return how many GPUs a replica needs so that it has the one that is called so."""
    kind, _, index = (device or "cpu").partition(":")
    return 0 if kind == "cpu" else 1 + int(index if index.isdecimal() else 0)


def _given_threads() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name == "OMP_NUM_THREADS"}


def _visible_gpus() -> list[str]:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(index) for index, _ in enumerate(_GPUS.iterdir())] if _GPUS.is_dir() else []


def front_settings(settings: ServerSettings) -> ServerSettings:
    """Return the settings of the distributor: each limit is one of a replica."""
    count = settings.num_replicas
    names = ("max_concurrent_requests", "max_queue", "max_total_body_bytes")
    return replace(settings, **{name: count * getattr(settings, name) for name in names})


def replica_settings(settings: ServerSettings) -> ServerSettings:
    """Return the settings of a replica, which the distributor alone talks to."""
    return replace(
        settings,
        host=_HOST,
        port=0,
        num_replicas=1,
        devices=(),
        proxy_url=None,
        cors_origins=(),
        cors_credentials=False,
        ssl_certfile=None,
        ssl_keyfile=None,
    )


async def _serve(
    orders: Mapping[str, object],
    settings: ServerSettings,
    environments: Sequence[Mapping[str, str]],
    sockets: list[socket.socket],
    on_ready: Callable[[], None],
) -> None:
    key = next(iter((*settings.admin_keys, *settings.api_keys)), "")
    nodes = Nodes("cache_affinity", key=key, hang_limit_s=settings.frontend_timeout_s)
    replicas = [_Replica(f"replica-{index}", orders, env, nodes) for index, env in enumerate(environments)]
    try:
        async with asyncio.TaskGroup() as starting:
            for replica in replicas:
                starting.create_task(replica.start())
        keeping = [asyncio.create_task(replica.keep()) for replica in replicas]
        await serve_nodes(
            front_settings(settings),
            nodes,
            sockets=sockets,
            on_ready=on_ready,
            gather_figures=lambda: _gather_figures(nodes, key),
        )
        for task in keeping:
            task.cancel()
    except* SeesayError as errors:
        raise errors.exceptions[0] from None
    finally:
        await asyncio.gather(*(replica.end(settings.drain_timeout_s + _END_S) for replica in replicas))


class _Replica:
    """A server process, and its place among the nodes."""

    def __init__(self, name: str, orders: Mapping[str, object], environment: Mapping[str, str], nodes: Nodes) -> None:
        self._name, self._orders, self._environment, self._nodes = name, orders, environment, nodes
        self._process: subprocess.Popen[bytes] | None = None
        self._node: Node | None = None

    async def start(self) -> None:
        """Start the process and wait until it listens. Raises what it reports."""
        with open_sockets(_HOST, 0) as sockets:
            url = f"http://{_HOST}:{port_of(sockets)}"
            self._process, reports = start_server(self._orders, sockets, self._environment)
        try:
            await _wait_readable(reports)
            report = os.read(reports, MAX_REPORT_BYTES)
        finally:
            os.close(reports)
        check_report(report, self._process, SeesayError, _END_S)
        self._node = Node(url, name=self._name)
        self._nodes.add(self._node)

    async def keep(self) -> None:
        """Start the process again whenever it has ended or hangs, until cancelled."""
        delay_s = 0.0
        while True:
            try:
                if self._process is None:
                    await self.start()
                delay_s = 0.0
                end = await self._wait_for_end()
            except (SeesayError, OSError) as error:
                end = str(error)
                delay_s = min(_MAX_DELAY_S, 2 * delay_s or _FIRST_DELAY_S)
            logger.error("%s ended (%s) and is started again", self._name, end)
            self._forget()
            await asyncio.sleep(delay_s)

    async def _wait_for_end(self) -> str:
        """Wait until the process has ended or hangs. Returns how it ended."""
        assert self._process is not None and self._node is not None
        life = os.pidfd_open(self._process.pid)
        waits = [asyncio.create_task(_wait_readable(life)), asyncio.create_task(self._node.hung.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            os.close(life)
        status = self._process.poll()
        return "it hung" if status is None else f"signal {-status}" if status < 0 else f"status {status}"

    def _forget(self) -> None:
        if self._node is not None:
            with contextlib.suppress(ApiError):  # an operator has removed it
                self._nodes.remove(self._name)
            self._node.end()
            self._node = None
        if self._process is not None:
            self._process.kill()
            _reap(self._process)
            self._process = None

    async def end(self, timeout_s: float) -> None:
        """End the process: with SIGTERM, and SIGKILL if it has not ended in time."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, timeout_s)
            self._process.kill()
            _reap(self._process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


async def _wait_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


async def _gather_figures(nodes: Nodes, key: str) -> list[list[Family]]:
    """Return the metrics of all replicas that are up, each with the label `replica`."""
    return await asyncio.gather(*(_read_figures(nodes, node, key) for node in nodes if node.is_up))


async def _read_figures(nodes: Nodes, node: Node, key: str) -> list[Family]:
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    status, text = await fetch(nodes.client, f"{node.url}/metrics", headers, timeout_s=_METRICS_S)
    return [
        Family(
            family.name,
            family.type,
            family.documentation,
            [Sample(s.name, {"replica": node.name, **s.labels}, s.value) for s in family.samples],
        )
        for family in text_string_to_metric_families(text.decode())
        if status == 200
    ]
