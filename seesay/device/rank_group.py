"""Joins the process group of the ranks of one machine: gloo on the CPU, the vendor's library on other devices."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING

from seesay.device.peer_ranks import open_peer_ranks
from seesay.device.query import pick_device
from seesay.device.ranks import Place, Ranks, TorchRanks
from seesay.device.registry import accelerator_of
from seesay.errors import ConfigError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("seesay")

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the network interface of a library. The ranks are on one machine: loopback is enough."""


def pick_rank_device(device_type: str, place: Place) -> torch.device:
    """Return the device of a rank: the CPU for all, or the GPU that is `place.rank` behind the one that `device_type`
    names. Raises `ConfigError` for a GPU that does not exist."""
    import torch

    first = pick_device(device_type)
    if first.type == "cpu":
        return first
    start, count = first.index or 0, accelerator_of(first).count()
    if start + place.size > count:
        raise ConfigError(
            f"tp={place.size}: takes {place.size} devices from {first.type}:{start} on, but this machine has only "
            f"{count}"
        )
    return torch.device(first.type, start + place.rank)


def join_group(file: int, place: Place, device: torch.device, *, timeout_s: float) -> Ranks:
    """Return the ranks, once all have joined: they meet in the anonymous file whose descriptor is `file`.

    After `timeout_s` in one exchange the library gives up. On the CPU the ranks share the processors.
    """
    import torch
    from torch import distributed
    from torch._C._distributed_c10d import FileStore

    for name in _INTERFACES:
        os.environ.setdefault(name, "lo")
    logger.info("rank %d of %d, on %s: waiting for the other ranks", place.rank, place.size, device)
    is_gpu = device.type != "cpu"
    if is_gpu:
        torch.accelerator.set_device_index(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // place.size))
    distributed.init_process_group(
        accelerator_of(device).collectives,
        store=FileStore(f"/proc/self/fd/{file}", place.size),
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if is_gpu else None,
    )
    assert distributed.group.WORLD is not None
    return open_peer_ranks(TorchRanks(distributed.group.WORLD), device)
