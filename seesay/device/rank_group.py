"""Joins the process group of the ranks: gloo on the CPU, the vendor's library on other devices."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import struct
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from seesay.device.peer_ranks import open_peer_ranks
from seesay.device.query import describe_kind, pick_device
from seesay.device.ranks import Place, Ranks, TorchRanks, TorchStages
from seesay.device.registry import accelerator_of
from seesay.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

logger = logging.getLogger("seesay")

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the network interface of a library. For ranks on one machine, loopback is enough."""
_SIOCGIFADDR = 0x8915


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
            f"{place.size} ranks (tp or pp) take {place.size} devices from {first.type}:{start} on, but this machine "
            f"has only {count}"
        )
    return torch.device(first.type, start + place.rank)


class Meeting(NamedTuple):
    """Where ranks meet. address: that of the network by which they reach each other; None: all are on this machine."""

    store: Store
    address: str | None = None


def meet_in_file(file: int, size: int) -> Meeting:
    """Return the meeting of so many ranks of this machine in the anonymous file whose descriptor is `file`."""
    from torch._C._distributed_c10d import FileStore

    return Meeting(FileStore(f"/proc/self/fd/{file}", size))


def join_group(meeting: Meeting, place: Place, device: torch.device, *, timeout_s: float) -> Ranks:
    """Return the ranks, once all have joined.

    After `timeout_s` in one exchange the library gives up. Ranks on the CPU of one machine share its processors.
    """
    import torch
    from torch import distributed

    collectives = accelerator_of(device).collectives
    if collectives is None:
        raise ConfigError(f"{describe_kind(device)} has no collectives, which join several: take one device")
    interface = "lo" if meeting.address is None else find_interface(meeting.address)
    for name in _INTERFACES:
        os.environ.setdefault(name, interface)
    logger.info("rank %d of %d, on %s: waiting for the other ranks", place.rank, place.size, device)
    is_gpu = device.type != "cpu"
    if is_gpu:
        torch.accelerator.set_device_index(device)
    elif meeting.address is None:
        torch.set_num_threads(max(1, torch.get_num_threads() // place.size))
    distributed.init_process_group(
        collectives,
        store=meeting.store,
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if is_gpu else None,
    )
    assert distributed.group.WORLD is not None
    ranks = TorchRanks(distributed.group.WORLD)
    return ranks if meeting.address is not None else open_peer_ranks(ranks, device)


def join_stages(meeting: Meeting, place: Place, device: torch.device, *, timeout_s: float) -> TorchStages:
    """Return the stages, once all have joined. See `join_group`."""
    from torch import distributed

    join_group(meeting, place, device, timeout_s=timeout_s)
    groups = [distributed.new_group(timeout=timedelta(seconds=timeout_s)) for _ in range(place.size)]
    return TorchStages(place, [group for group in groups if isinstance(group, distributed.ProcessGroup)])


def find_interface(address: str) -> str:
    """Return the name of the network interface of this machine that has an IPv4 address, or else 'lo'."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return "lo"
