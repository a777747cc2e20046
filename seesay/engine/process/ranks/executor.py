"""Where the processes of ranks run, and how they meet: on this machine, or wherever Ray places them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import zmq

from seesay.engine.process.arrays import make_file
from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.ranks import rank_messages

if TYPE_CHECKING:
    import torch

    from seesay.device.rank_group import Meeting
    from seesay.device.ranks import Place

MODULE = "seesay.engine.process.ranks.child"


class ToRank(Protocol):
    """Rank 0's end of the link to a rank, as of `Link`."""

    def send(self, message: rank_messages.ToFollower) -> None: ...

    def wait(self, timeout_s: float | None) -> bool: ...

    def receive(self) -> rank_messages.ToLeader: ...


class RankProcess(Protocol):
    """The process of a rank that follows."""

    @property
    def link(self) -> ToRank: ...

    def register(self, poller: zmq.Poller) -> None:
        """Let `poller` wait for messages."""
        ...

    def find_end(self) -> str | None:
        """Return how the process ended, such as 'signal 9'; None while it lives."""
        ...

    def kill(self) -> None:
        """Kill the process. Waits for nothing."""
        ...

    def end(self, timeout_s: float = 0.0) -> None:
        """Wait so long for the process to end by itself, then kill it, and free what the link holds."""
        ...


class Executor(Protocol):
    """is_local: whether all ranks are on this machine, and see its memory."""

    is_local: bool

    def start(self, rank: int) -> RankProcess:
        """Start the process of a rank. Raises `OSError`, `ConfigError`."""
        ...

    def pick_device(self, device_type: str, place: Place) -> torch.device:
        """Return the device of rank 0."""
        ...

    def meet(self) -> Meeting:
        """Return where rank 0 meets the others."""
        ...

    def close(self) -> None:
        """Free what is left when the processes have ended."""
        ...


class LocalExecutor:
    """An `Executor`: child processes, which meet in an anonymous file. `module` is what they run."""

    is_local = True

    def __init__(self, size: int, module: str = MODULE) -> None:
        self._size, self._module = size, module
        self._file = make_file("seesay-ranks")

    def start(self, rank: int) -> RankProcess:
        del rank
        return ChildProcess[rank_messages.ToFollower, rank_messages.ToLeader](
            self._module, receives=rank_messages.ToLeader, descriptors=[self._file]
        )

    def pick_device(self, device_type: str, place: Place) -> torch.device:
        from seesay.device.rank_group import pick_rank_device

        return pick_rank_device(device_type, place)

    def meet(self) -> Meeting:
        from seesay.device.rank_group import meet_in_file

        return meet_in_file(self._file, self._size)

    def close(self) -> None:
        os.close(self._file)
